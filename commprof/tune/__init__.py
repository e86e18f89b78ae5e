"""Changes that make communication cheaper: compressors, trials of them, and the backend."""
