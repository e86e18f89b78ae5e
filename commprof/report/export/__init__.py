"""A run as JSON, CSV, Parquet and timeline files."""
