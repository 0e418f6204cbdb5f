"""Makes `tiny-image`: tokenizer, target and drafter, from scenes rendered here."""
