"""What the page shows, as HTML made from plain values; nothing here knows the engine or Gradio."""
