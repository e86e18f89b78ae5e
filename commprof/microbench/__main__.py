"""``python -m commprof.microbench``: the same as ``commprof microbench``."""

from __future__ import annotations

import sys

from commprof.commands import main_of

if __name__ == "__main__":
    sys.exit(main_of("microbench", "python -m commprof.microbench"))
