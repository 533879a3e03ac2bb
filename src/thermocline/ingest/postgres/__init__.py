"""Postgres change data capture: the first state of a table, then every change of it, in order."""
