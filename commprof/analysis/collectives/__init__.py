"""How often, how long and at what bandwidth collectives run."""
