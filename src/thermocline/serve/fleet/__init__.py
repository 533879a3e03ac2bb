"""Everybody the router can ask, kept running and told from one another."""
