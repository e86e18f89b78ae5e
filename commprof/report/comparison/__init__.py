"""Two runs, or two sweeps, side by side."""
