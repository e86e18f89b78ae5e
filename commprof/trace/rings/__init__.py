"""Ring files: what a process recorded and had not flushed."""
