"""Trials: settings of a job, compared on the job's own steps. Only ``live`` imports torch."""
