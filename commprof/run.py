"""``python -m commprof.run``: the same as ``commprof run``."""

from __future__ import annotations

import sys

from commprof.commands import main_of

if __name__ == "__main__":
    sys.exit(main_of("run", "python -m commprof.run"))
