"""What ``import commprof`` gives."""

from __future__ import annotations

import subprocess
import sys

CHECK = """
import sys
import commprof
assert commprof.compressors.topk(0.01).label.startswith("topk")
assert "torch" not in sys.modules
for name in commprof.__all__:
    getattr(commprof, name)
"""


def test_all_names_are_there_and_torch_is_loaded_only_when_needed() -> None:
    subprocess.run([sys.executable, "-c", CHECK], check=True)
