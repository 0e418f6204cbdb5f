"""One file per command of `polydraft`; each imports torch and the library only when it runs. `shared/` is what several
have in common, `maps/` what they show of where drafts were kept."""
