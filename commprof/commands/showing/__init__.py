"""Display of a recorded run, shared by several commands."""
