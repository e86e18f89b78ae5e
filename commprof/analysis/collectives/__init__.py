"""Number, duration, bandwidth and traffic of collectives, and mismatches between ranks."""
