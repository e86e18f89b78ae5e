"""Training scripts as users have them; none of them knows of commprof."""
