"""One file a question set: how its rows are read, asked and scored."""
