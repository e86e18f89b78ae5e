"""Reads and compares sweeps: times of collectives by size, from commprof or nccl-tests."""
