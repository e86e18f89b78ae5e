"""Which rank comes late, and why; what went wrong in a run."""
