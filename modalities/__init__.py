"""Adapters between the core decoding loop and images, speech and vision-language models."""
