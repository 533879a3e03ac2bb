"""Authentication: tokens and JWTs, and where tokens are stored."""
