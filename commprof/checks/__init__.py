"""Checks of the ranks, their hosts and what lies between them, before or beside a training.

One check is one file with ``NAME``, ``measure(ranks)``, which every rank calls, and
``judge(values)``, which is told what all of them measured.
"""
