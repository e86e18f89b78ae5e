"""Facts about a job and its ranks: directory, ranks, clocks and hosts."""
