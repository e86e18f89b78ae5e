"""Replacement for the package ``expecttest``, which PyTorch's test base class imports.

No test of DDP uses its functions; a test that did would fail visibly.
"""

from __future__ import annotations

import sys
import types
import unittest


class TestCase(unittest.TestCase):
    """Test case without ``assertExpectedInline``."""


def install() -> None:
    """Installs the replacement if the package is missing."""
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:
        module = types.ModuleType("expecttest")
        module.TestCase = TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module
