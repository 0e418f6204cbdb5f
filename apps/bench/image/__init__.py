"""Benchmarks of image methods: speed, depth of acceptance, costs of passes, and image quality."""
