"""A trial as text, rows and JSON."""
