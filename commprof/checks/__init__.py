"""Checks of the ranks, their hosts and the network, run before or during training.

Each check is a module with ``NAME`` and two functions. Every rank calls ``measure(ranks)``. The
function ``judge(values)`` gets the measurements of all ranks.
"""
