"""Heads on the target's hidden states that predict several tokens at once: Medusa, Hydra, blocks, the row above."""
