"""Recordings of jobs that ran without commprof, read into what its analyses take."""
