"""Converts the ranks' records to one common clock, and selects the measured steps."""
