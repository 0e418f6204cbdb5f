"""Drafters without a network: drafts come from tokens and distributions seen before."""
