"""The phases and steps of a training loop, found without the user's help."""
