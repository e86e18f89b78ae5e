"""Predictions for other settings: more ranks, other links, other buckets."""
