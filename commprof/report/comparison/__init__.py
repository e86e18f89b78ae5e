"""Rendering of a sweep, and of comparisons of two runs or two sweeps."""
