"""Speculative decoding inside transformers' own `generate`: `model.generate(**inputs, custom_generate=speculate())`."""
