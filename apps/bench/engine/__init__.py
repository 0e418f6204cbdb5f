"""Costs of the decoding engine itself: per token, by length, by rows, and part by part."""
