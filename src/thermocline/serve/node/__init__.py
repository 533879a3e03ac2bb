"""A hot node: a process that holds copies of tables in memory and answers queries on them."""
