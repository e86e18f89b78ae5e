"""Finds who waits for whom in a job, using only logs of NCCL Inspector."""
