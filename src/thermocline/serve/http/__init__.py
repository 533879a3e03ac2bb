"""The HTTP API: requests, responses, limits, and the server process."""
