"""Engines on a Ray cluster, and batches over its processes."""
