"""Observation of a running job from outside of its ranks: their traces are read while they grow.

Monitor and watchdog are processes of their own; a rank only starts them, or reads its own trace for
``prof.summary()``. Nothing here imports torch.
"""
