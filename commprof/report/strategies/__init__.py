"""Several strategies side by side."""
