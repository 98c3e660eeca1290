"""The version of this distribution and of everything that is built with it."""

__version__ = "0.1.0"
