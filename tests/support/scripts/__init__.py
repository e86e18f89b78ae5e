"""Training scripts of users, without commprof."""
