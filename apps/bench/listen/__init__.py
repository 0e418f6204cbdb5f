"""Benchmarks of speech recognition: speed of every method, beside other engines, and word error rates."""
