"""Image quality: the matcher on rendered worlds, and networks for images of any model."""
