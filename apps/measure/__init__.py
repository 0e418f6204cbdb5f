"""Shared parts of benchmarks: timing in turns, tables, plots and result files."""
