"""Chameleons that generate images (Chameleon team 2024, arXiv 2405.09818): Anole, Lumina-mGPT, and their VQGAN."""
