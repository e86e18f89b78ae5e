"""Comparison of commprof's figures with other measurements of the same run."""
