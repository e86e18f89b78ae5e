"""Microbenchmark that measures collectives alone, in the terms of nccl-tests, on any backend."""
