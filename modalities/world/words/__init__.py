"""What is said about scenes: captions and descriptions, and how prompts, questions and answers are read."""
