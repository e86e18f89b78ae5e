"""Launch of a job's ranks, and detection of a rank that fails."""
