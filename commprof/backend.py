"""Importing this module registers the c10d backend ``commprof``."""

from __future__ import annotations

import importlib

importlib.import_module("commprof.tune.backend")
