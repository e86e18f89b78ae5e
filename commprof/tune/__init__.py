"""Ways to make communication cheaper: compressors, trials, and the backend ``commprof``."""
