"""ImageGPT (OpenAI): 32x32 pixels without a prompt."""
