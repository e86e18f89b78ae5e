"""Predictions of steps whose parameters, gradients or optimizer state are sharded."""
