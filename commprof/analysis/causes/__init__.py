"""Names the line, or the setting, of a training script that makes its communication slow."""
