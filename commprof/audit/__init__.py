"""Checks that the figures of a scaling report agree with each other."""
