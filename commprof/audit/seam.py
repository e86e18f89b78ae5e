"""The audit's command in commprof's command line; ``commprof.satellites`` loads this module."""

from __future__ import annotations

COMMANDS = {
    "audit": (
        "check if the figures of a scaling report agree with each other",
        "commprof.audit.command:AuditCommand",
    ),
}
OVERVIEW = """\
  commprof audit FILE         check if the figures of a scaling report agree with each other
"""
