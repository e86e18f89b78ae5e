"""Questions that a replay answers: more ranks, other links, other buckets."""
