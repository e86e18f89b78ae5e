"""``import commprof.backend`` registers the c10d backend ``commprof`` of commprof.tune."""

from __future__ import annotations

import importlib

importlib.import_module("commprof.tune.backend")
