"""Live capture inside the training process."""
