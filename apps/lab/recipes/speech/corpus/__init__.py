"""Training speech: sentences synthesised by flite, with the time of every symbol."""
