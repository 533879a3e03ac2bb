"""Steps on Spark: the engine of every model, and of as many rows as there are."""
