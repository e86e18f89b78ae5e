"""Trials: candidates, schedule, result and verdict. Loads torch in ``live`` only."""
