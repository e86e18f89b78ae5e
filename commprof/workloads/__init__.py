"""Training in launched ranks. Depends on torch, not on capture, analysis or reports."""
