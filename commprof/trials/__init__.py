"""Trials: what takes turns, when, what came of it, and what to do. Never loads torch."""
