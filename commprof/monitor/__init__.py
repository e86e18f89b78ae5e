"""A running job seen from outside of its ranks: their traces, followed while they grow.

Nothing here runs in a process that trains, and nothing imports torch.
"""
