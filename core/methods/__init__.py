"""Methods: a drafter and a verifier, by name, and how they are tuned to a machine and a drafter."""
