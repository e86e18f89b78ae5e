"""Files of a run directory besides traces."""
