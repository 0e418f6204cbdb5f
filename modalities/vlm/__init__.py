"""Vision-language models: pictures and questions in, answers out."""
