"""Judges of emoji-world images: find the scene in an image and compare it with a composition."""
