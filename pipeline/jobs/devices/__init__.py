"""One run over several devices, which take whole items from one queue.

Each device has a process of its own that does the same job with the items that it is given, reading and writing
included. The other way, one process with a thread and a session for each device, would share readers and writers. But
threads share one interpreter lock: an item costs milliseconds of Python beside its device's milliseconds, so two
devices would wait for each other (600 photos on two devices are to take 1/1.95 of the time on one). And a device that
crashes would take all others with it. A process costs its start, PyTorch's import and a copy of the weights in host
memory while it loads them, all at the same time as the others.
"""
