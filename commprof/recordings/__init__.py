"""Reads recordings of other tools, so that commprof can analyse them."""
