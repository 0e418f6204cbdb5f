"""`polydraft bench speculate`: transformers' `generate` with and without drafts, as a script calls it."""
