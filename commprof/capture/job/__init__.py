"""Facts about the job that ranks share: directory, rank and world size, clocks, hosts."""
