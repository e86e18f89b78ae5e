"""Computes figures from tables of records, in pure functions without torch and without drawing."""
