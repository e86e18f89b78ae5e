"""Recorded steps, the setting to predict for them, and the links of this setting."""
