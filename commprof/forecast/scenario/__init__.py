"""Recorded steps, the setting to predict for them, and the links that this setting uses."""
