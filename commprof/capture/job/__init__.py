"""What a rank knows of its job and tells the other ranks: names, clocks, places."""
