"""Methods: a way to draft and a way to judge, by name, and how they are fitted to a machine and a drafter."""
