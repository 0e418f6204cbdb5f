"""`polydraft bench`: the group of commands (`group.py`), and a module for each thing that is measured."""
