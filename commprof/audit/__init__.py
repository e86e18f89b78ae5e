"""Checks a scaling report against its own arithmetic. Pure: text in, findings out."""
