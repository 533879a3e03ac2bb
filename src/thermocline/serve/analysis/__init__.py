"""What a query asks for: which span of time, which pieces, and whether it reads a table at all."""
