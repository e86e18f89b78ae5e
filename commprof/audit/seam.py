"""What the audit adds to the command line of commprof; ``commprof.satellites`` reads it."""

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
