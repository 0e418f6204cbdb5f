"""Liquid (Junfeng5): a Gemma with the codes of Chameleon's VQGAN."""
