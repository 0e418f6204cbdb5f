"""What the engine itself costs, whatever it generates: per token, by length, by rows, and part by part."""
