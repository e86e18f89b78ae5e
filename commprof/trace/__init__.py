"""Reading of trace files into typed columns."""
