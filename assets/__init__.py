"""Data shipped with the package; reach it through importlib.resources.files('polydraft.assets')."""
