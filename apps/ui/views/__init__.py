"""HTML of the page, made from plain values; nothing here knows the engine or Gradio."""
