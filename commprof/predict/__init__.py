"""What a run would take elsewhere: fitted costs, the recorded schedule, and their replay."""
