"""Computes figures of a running job's steps and collectives."""
