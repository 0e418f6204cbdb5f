"""The emoji world: rendered scenes and captions whose truth is known."""
