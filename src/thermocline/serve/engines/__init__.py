"""The engines behind the hot nodes: DuckDB on the files, Spark, Trino."""
