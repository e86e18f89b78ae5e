"""Callbacks that record a job of a training framework; see ``docs/your_job.md``.

One module per framework, named after it. Only importing that module imports the framework.
"""
