"""Replaces the package ``expecttest``, which PyTorch's test base class imports.

No test of DDP uses the package's functions.
"""

from __future__ import annotations

import sys
import types
import unittest


class TestCase(unittest.TestCase):
    pass


def install() -> None:
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:
        module = types.ModuleType("expecttest")
        module.TestCase = TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module
