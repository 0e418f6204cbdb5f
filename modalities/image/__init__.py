"""Images: tokenizers, model adapters and the pipeline users call."""
