"""Jacobi decoding: the target drafts for itself, in a window that earlier passes filled."""
