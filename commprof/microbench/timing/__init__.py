"""What each rank of a micro-benchmark does: buffers, calls, hooks and their times."""
