"""Predicts a run in another setting: replays the recorded schedule with fitted costs."""
