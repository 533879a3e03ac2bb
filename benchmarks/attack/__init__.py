"""What a few callers can do to the others: `python -m benchmarks.attack --seconds 60`."""
