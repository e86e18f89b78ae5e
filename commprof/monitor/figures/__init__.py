"""Figures of a running job's steps and collectives, as they come."""
