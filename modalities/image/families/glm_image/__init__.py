"""GLM-Image (zai-org): codes from a language model, pixels by diffusion."""
