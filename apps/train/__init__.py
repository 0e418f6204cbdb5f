"""Commands that train the embedded models from data the project renders itself."""
