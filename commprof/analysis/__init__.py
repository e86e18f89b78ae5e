"""Columns in, frozen results out: pure functions, no torch, no drawing."""
