"""Checks of the ranks, their hosts and the network, run before or during training.

Each check is a file with ``NAME``, ``measure(ranks)``, which every rank calls, and
``judge(values)``, which gets the measurements of all ranks.
"""
