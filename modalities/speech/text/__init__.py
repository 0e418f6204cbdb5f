"""Reading text: numbers, words and their sounds, and parts that are not too long."""
