"""The ranks' records brought onto one clock and one set of steps."""
