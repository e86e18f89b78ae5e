"""The recorded steps of all ranks, run again with other work or other transfer times."""
