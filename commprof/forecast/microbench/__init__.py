"""Measures collectives on any c10d backend, with the options and columns of nccl-tests.

No model is trained.
"""
