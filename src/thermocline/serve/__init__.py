"""The query path: a question is guarded, routed, and answered with where the answer came from."""
