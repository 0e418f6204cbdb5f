"""Janus and Janus-Pro (deepseek-community): 384x384 images in 24x24 codes."""
