"""Files of a run directory other than traces."""
