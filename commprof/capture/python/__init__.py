"""Capture in Python, where the native module is missing."""
