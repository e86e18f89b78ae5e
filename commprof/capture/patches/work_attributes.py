"""What a backend's own class of Work has beyond ``torch.distributed.Work``.

While capture runs, scripts get a Work of the native module's, which times waits, in the place of
the backend's. All of c10d's methods go through it; whatever else a script asks for is looked up in
the Work behind.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from commprof import _native


def show_inner_attributes() -> None:
    """Makes them reachable from now on: a Work may be used long after capture stopped."""
    native = _native.native
    if native is None or "__getattr__" in vars(dist.Work):
        return

    def find(work: Any, name: str) -> Any:
        special = name.startswith("__")  # Python's own protocols, such as copying
        inner = None if special else native.inner_work(work)
        if inner is None:
            raise AttributeError(f"{type(work).__name__!r} object has no attribute {name!r}")
        return getattr(inner, name)

    dist.Work.__getattr__ = find
