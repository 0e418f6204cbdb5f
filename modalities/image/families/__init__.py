"""Model families of image generation: a folder each, with a card, and modules under the published names."""
