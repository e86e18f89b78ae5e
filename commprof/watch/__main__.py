"""``python -m commprof.watch DIR``: watches the ranks that record into DIR."""

from __future__ import annotations

import sys

from commprof.watch.command import main

if __name__ == "__main__":
    sys.exit(main())
