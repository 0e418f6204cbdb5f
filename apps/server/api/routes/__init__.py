"""What the API answers, a file a subject."""
