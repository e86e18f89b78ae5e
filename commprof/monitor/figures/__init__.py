"""Figures of a running job's steps and collectives, updated as records arrive."""
