"""What is said: sentences spoken by flite, with the time of every symbol."""
