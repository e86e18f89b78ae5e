"""Measured steps, their parts, and the waiting for other ranks within them."""
