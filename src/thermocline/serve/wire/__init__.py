"""How processes of serving talk, and the loop of those that answer."""
