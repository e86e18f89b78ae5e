"""Where each step of a rank went, and how steps change over a run."""
