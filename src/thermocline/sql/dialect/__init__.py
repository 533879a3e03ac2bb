"""What a query means in one engine's dialect, said in another's so that the answer is the same.

DuckDB's meaning is the middle: `from_trino` says Trino's SQL in DuckDB's words, `to_spark` and
`to_trino` say DuckDB's in theirs. Each is a list of what is allowed. A construct that nobody has
compared between the engines is refused, not passed on in the hope that it means the same.
"""
