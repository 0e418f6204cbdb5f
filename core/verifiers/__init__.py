"""Verifiers, one file per family: which drafted tokens are accepted, and under which guarantee."""
