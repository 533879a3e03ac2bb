"""Postgres change data capture: an initial snapshot of the tables, then every change in log order.

`source` reads the settings and opens one of two feeds. `feed` reads the log from this machine:
`capture_process` starts `capture_worker`, which decodes the log (`replication`, `pgoutput`,
`events`), and `spool` holds a batch for Spark. `connect_feed` reads Debezium's topics.
"""
