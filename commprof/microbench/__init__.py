"""The collective sweep: measures collectives alone, in nccl-tests' words, on any backend."""
