"""Drafters, one file per family: cheap proposals for the target to score."""
