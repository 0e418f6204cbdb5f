"""Distillation: training of drafters on the outputs of a target."""
