"""Renders a sweep, a comparison of two runs, or a comparison of two sweeps."""
