"""Captions of several lengths, wordings and counts, for image models of every kind of token."""

CAPTIONS = [
    "two frogs on a blue background",
    "a small panda to the left of a large rocket on a yellow background",
    "navy background with three stars",
    "a cat above a fire on a pink background",
    "one big sun on an orange background",
]
