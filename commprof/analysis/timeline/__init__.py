"""Timelines of all ranks, to be drawn."""
