"""Networks that draft token by token: EAGLE, an early exit, a small LM; and what all networks that draft share."""
