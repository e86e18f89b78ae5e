"""Late ranks and their causes, hangs and other incidents of a run."""
