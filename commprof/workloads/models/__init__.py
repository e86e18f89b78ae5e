"""The built-in models that a workload trains."""
