"""Makes `tiny-speech`: codec, target and drafters, from what flite says."""
