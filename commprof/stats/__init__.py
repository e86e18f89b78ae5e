"""Statistics: intervals, rank tests, and what is robust against a disturbed machine."""
