"""Continuous tokens: latents that a short denoising chain draws, drafted and verified by the same loop as ids."""
