"""Cost models of collectives and hooks, fitted to measurements."""
