"""What image methods earn: speed, depth of acceptance, costs of passes, and what their pictures show."""
