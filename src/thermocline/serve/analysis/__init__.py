"""Analyses of queries: time ranges, splits, use of the clock, and bare function names."""
