"""Speech recognition: sound in, text with times out."""
