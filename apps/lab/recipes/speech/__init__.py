"""Training of `tiny-speech`: codec, target and drafters, from speech synthesised by flite."""
