"""The keeper: looks at the catalog, and keeps the hot nodes at what it sees there."""
