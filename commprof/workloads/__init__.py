"""Training in launched ranks. Imports torch, but not capture, analysis or reports."""
