"""The page people open: tabs that draw, speak, answer and compare, over the engine of the server."""
