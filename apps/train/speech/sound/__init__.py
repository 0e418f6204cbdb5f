"""The codec of `tiny-speech`: what it learns from, how far its sound is from what was said, and when it is good
enough."""
