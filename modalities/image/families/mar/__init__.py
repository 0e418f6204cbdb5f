"""MAR (LTH14/mar, MIT): images of ImageNet's classes, a set of continuous tokens at a time, in random order."""
