"""Predicts a run in another setting, by a replay of the recorded schedule with fitted costs."""
