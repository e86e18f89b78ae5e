"""Sweeps of collectives over sizes, measured by commprof or by nccl-tests: read and compared."""
