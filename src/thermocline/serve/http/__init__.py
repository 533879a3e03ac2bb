"""The HTTP door: requests, replies, limits, and the server itself."""
