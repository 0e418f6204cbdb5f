"""Lessons of one's own: pictures, questions, conversations, prompts and texts that a drafter is trained on."""
