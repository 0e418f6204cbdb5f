"""The draft, score, verify, commit loop and its parts; knows no modality."""
