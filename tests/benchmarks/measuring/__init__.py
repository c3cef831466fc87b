"""What the scripts of ``tests/benchmarks`` share. All of it has a form for CPUs and tiny models, to be tested."""
