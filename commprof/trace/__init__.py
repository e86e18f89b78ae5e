"""Trace files: reading them into typed columns."""
