"""Replay of recorded steps with other costs."""
