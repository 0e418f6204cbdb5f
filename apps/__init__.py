"""Applications: command line, training, benchmarks, server and user interface."""
