"""Networks that draft token by token: EAGLE, early exit, a small language model; and what they share."""
