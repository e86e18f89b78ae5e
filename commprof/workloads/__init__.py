"""What launched ranks train. Knows torch, and nothing of capture, analysis or reports."""
