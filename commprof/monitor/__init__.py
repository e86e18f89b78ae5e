"""Observes a running job by reading its traces while the ranks write them.

The monitor and the watchdog are separate processes. Nothing in this package imports torch.
"""
