"""Speech: text to codec codes to sound."""
