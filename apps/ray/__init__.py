"""Past one process: the service and long batches on a Ray cluster. Needs the extra `ray`, and imports nothing of it."""
