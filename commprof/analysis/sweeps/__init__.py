"""Sweeps of collectives over sizes, measured here or by nccl-tests: read and compared."""
