"""What the reader of texts knows: how words and letters sound, asked of flite."""
