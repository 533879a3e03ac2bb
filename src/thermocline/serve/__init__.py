"""The query path: guard a query, route it, and answer it with the provenance of the answer."""
