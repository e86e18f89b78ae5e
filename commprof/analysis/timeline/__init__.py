"""Timelines of every rank: slices in lanes, where slices in the same lane do not overlap."""
