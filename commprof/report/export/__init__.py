"""Export of a run as JSON, CSV, Parquet and timeline files."""
