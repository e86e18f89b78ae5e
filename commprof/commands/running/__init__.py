"""The parts of ``commprof run``."""
