"""Verifiers, one file per family: which drafted tokens are kept, and under which guarantee."""
