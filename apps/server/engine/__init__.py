"""The engine: requests of all kinds in groups that take turns on one thread that computes."""
