"""Computes figures from tables of records, in pure functions that do not import torch."""
