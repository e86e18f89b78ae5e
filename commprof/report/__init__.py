"""Rendering of results as text, pages and data files; no figures are computed here."""
