"""Training of the codec of `tiny-speech`: data, losses, and the gate that it has to pass."""
