"""Queries: guarded, understood, and translated faithfully for each engine."""
