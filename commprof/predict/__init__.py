"""Predicts a run in another setting: fitted costs, the recorded schedule, and its replay."""
