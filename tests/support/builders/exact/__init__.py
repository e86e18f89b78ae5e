"""Exact schedules: jobs whose every time, wait and cause is known from their construction."""
