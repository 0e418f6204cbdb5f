"""Inference of unmodified transformers models over our KV cache, with bits that do not depend on the batch."""
