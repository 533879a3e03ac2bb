"""Serving under load, beside the engines that read the same files."""
