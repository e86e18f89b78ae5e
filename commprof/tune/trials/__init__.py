"""Trials compare settings of a job on the job's own steps. Only ``live`` imports torch."""
