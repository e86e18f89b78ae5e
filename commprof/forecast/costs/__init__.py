"""Fitted costs of collectives and hooks, and the machine profile that holds these costs."""
