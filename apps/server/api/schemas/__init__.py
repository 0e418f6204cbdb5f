"""Schemas of requests and responses; the documented schema is the one that is validated."""
