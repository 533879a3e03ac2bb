"""Measure operations at sizes N, 4N and 16N: the cost must follow the change, not the history."""
