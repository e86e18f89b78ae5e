"""What a step would take, from its schedule alone."""
