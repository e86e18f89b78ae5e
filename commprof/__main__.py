"""``python -m commprof``: the same as ``commprof``."""

from __future__ import annotations

import sys

from commprof.commands import main

if __name__ == "__main__":
    sys.exit(main())
