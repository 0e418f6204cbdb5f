"""Language models: speed of every method on requests of six kinds, beside other engines."""
