"""Texts about scenes: captions, descriptions, questions, and parsers of prompts and answers."""
