"""Whether a table keeps its contract: rules compiled to one query, and the gate before publish.

`rules` lists the rules, `compiler` builds the query, `rule_result` evaluates its row,
`violating_rows` finds the rows that break a rule, and `gate` combines them. Only `sql_builder`,
`checked_table`, `predicate`, `typed_literals` and `custom_sql` import sqlglot, and only when a
table is checked.
"""
