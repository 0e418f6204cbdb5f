"""Commands that time methods against plain decoding and measure what they produce."""
