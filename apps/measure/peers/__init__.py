"""Baselines of our decoding: plain loops over transformers alone, and the faster of them and ours."""
