"""Sampling: from logits to a token distribution, and the noise that tokens are sampled with."""
