"""Whether a table keeps its contract: rules compiled to one query, and the gate before publish.

`rules` says what is checked, `compile` makes the query, `outcome` judges its answer, `rows` finds
the rows that broke a rule, `gate` joins them. Only `statement`, `predicate`, `literal` and
`custom` import sqlglot, and nothing here does until a table is really checked.
"""
