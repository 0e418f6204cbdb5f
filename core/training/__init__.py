"""Training drafters: distilling a target into something cheaper."""
