"""Replacements for torch's functions and methods, installed while capture runs."""
