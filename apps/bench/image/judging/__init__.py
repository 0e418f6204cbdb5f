"""What pictures are worth: the matcher on rendered worlds, and networks for pictures of any model."""
