"""MAR (LTH14/mar, MIT): draws pictures of ImageNet's classes, a set of continuous tokens at a time, in random order."""
