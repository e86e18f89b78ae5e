"""Timelines of every rank, as slices that do not overlap on one lane."""
