"""The commands that predict, and those that measure what predictions need."""
