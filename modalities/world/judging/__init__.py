"""What a picture shows, and whether that is what was asked for."""
