"""Emoji dataset: rendered scenes, and captions, questions and answers about them that can be verified."""
