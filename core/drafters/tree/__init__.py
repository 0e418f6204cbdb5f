"""Draft trees: candidates of every level, which of them are kept, and drafters that grow them."""
