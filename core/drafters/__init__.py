"""Drafters: cheap proposals for the target to score.

tree/ draft trees, and drafters that grow them · network/ networks that read on, by what they read · heads/ guesses for
several places at once · jacobi/ the target's own guesses. Here: the seam, and drafters that need no network.
"""
