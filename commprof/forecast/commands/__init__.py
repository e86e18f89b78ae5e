"""The commands that predict runs, and the commands that measure costs for predictions."""
