"""Functions and classes of torch's that capture replaces while it runs."""
