"""Predictions and machine profiles as text and JSON."""
