"""Microbenchmark of collectives without training, in the terms of nccl-tests, on any backend."""
