"""``python -m commprof.monitor.watchdog DIR``: watches the ranks that record into DIR."""

from __future__ import annotations

import sys

from commprof.monitor.watchdog.command import main

if __name__ == "__main__":
    sys.exit(main())
