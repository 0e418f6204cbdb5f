"""Language models without images: questions in, answers out."""
