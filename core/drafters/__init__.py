"""Drafters: cheap proposals for the target to verify.

tree/ draft trees, and drafters that grow them · network/ draft models, by their inputs · heads/ several tokens at once
· jacobi/ the target's own guesses. Here: the interface, and drafters that need no network.
"""
