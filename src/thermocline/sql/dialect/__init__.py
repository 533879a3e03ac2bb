"""Translate queries between the dialects of engines so that the result is the same.

DuckDB's semantics are the intermediate form: `from_trino` translates Trino's SQL to DuckDB's,
`to_spark` and `to_trino` translate DuckDB's to theirs. Each has an allow-list: a construct that has
not been compared between the engines is refused, never passed on unchecked.
"""
