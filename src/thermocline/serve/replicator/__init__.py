"""The replicator: polls the catalog and keeps the copies on hot nodes up to date."""
