"""Makes `tiny-vlm`: words, target and drafters, from scenes and conversations about them."""
