"""Heads on the target's features that guess several places at once: Medusa, Hydra, blocks, rows above."""
