"""Rows on their way out: bounded, and encoded once."""
