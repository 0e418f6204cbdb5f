"""Benchmarks of speech methods: speed, time to first audio, and intelligibility."""
