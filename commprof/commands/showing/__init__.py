"""What several commands show of a recorded run."""
