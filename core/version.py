"""The version of the package, which the build reads here too."""

__version__ = "0.1.0"
