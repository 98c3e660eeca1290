"""Fuzzers of everything that reads bytes from elsewhere: see README.md here."""
