"""Compute steps on DuckDB, in this process: the same rows as on Spark, without a JVM."""
