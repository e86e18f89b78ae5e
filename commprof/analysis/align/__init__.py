"""Converts the ranks' records to one common clock, and finds the rank that arrived last."""
