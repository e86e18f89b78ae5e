"""Jobs in which every time, wait and cause is known from their construction."""
