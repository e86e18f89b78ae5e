"""A recorded step replayed with other costs."""
