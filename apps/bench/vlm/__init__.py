"""Benchmarks of vision-language models: question sets, their official scores, and runs that can be resumed."""
