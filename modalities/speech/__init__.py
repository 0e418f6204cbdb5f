"""Text-to-speech: from text to codec codes to audio."""
