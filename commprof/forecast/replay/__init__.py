"""Replay of recorded training steps in other settings, to predict the time of a step."""
