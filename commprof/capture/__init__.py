"""Capture inside the training process."""
