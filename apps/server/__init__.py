"""The service: an engine that many requests share, and an OpenAI-compatible API in front of it."""
