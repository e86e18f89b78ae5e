"""Who waits for whom, from logs of NCCL Inspector alone."""
