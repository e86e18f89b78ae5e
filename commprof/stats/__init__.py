"""Statistics: intervals, rank tests, and estimates that are robust against disturbances."""
