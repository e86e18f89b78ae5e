"""Parts of each step of a rank, and how steps change over a run."""
