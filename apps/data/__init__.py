"""Training data of drafters: user data and built-in prompts, as images, questions, conversations and texts."""
