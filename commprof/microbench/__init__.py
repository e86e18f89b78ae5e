"""Measures collectives without training on any backend, with nccl-tests' options and columns."""
