"""Results in, text out: formatting only, no metric is computed here."""
