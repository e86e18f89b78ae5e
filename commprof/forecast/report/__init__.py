"""Rendering of predictions and machine profiles as text and JSON."""
