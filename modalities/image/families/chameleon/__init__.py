"""Chameleons that draw (Chameleon team 2024, arXiv 2405.09818): Anole and Lumina-mGPT, and the VQGAN they share."""
