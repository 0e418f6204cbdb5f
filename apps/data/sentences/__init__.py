"""Sentence generator for training and evaluating `tiny-speech`."""
