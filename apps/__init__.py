"""How people reach the library: command line, training, benchmarks, server and user interface."""
