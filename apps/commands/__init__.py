"""One file per command of `polydraft`; each imports torch and the library only when it runs."""
