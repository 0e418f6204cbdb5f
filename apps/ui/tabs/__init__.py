"""The tabs of the page: controls, and what their buttons ask of the engine."""
