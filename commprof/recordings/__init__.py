"""Readers of recordings of jobs that ran without commprof, for commprof's analyses."""
