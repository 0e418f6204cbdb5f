"""Emu3-Gen (BAAI): images of any size in multiples of 8 pixels."""
