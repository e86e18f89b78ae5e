"""What a run directory holds beside traces."""
