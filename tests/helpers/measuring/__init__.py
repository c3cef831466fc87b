"""What the measuring scripts of ``tests/gpu`` share. All of it has a form for CPUs and tiny models, to be tested."""
