"""The engines behind the router: worker processes, hot nodes, and the state of the lake."""
