"""Pronunciation data of the text reader: phones of words and letters, from flite."""
