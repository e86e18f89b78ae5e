"""Renders results as text, pages and data files. No figures are computed here."""
