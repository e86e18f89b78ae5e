"""Replay of the recorded steps of all ranks with other work or other transfer times."""
