"""In the place of the package ``expecttest``, which PyTorch's test base class imports.

No test of DDP expects anything with it; one that did would fail here, and show.
"""

from __future__ import annotations

import sys
import types
import unittest


class TestCase(unittest.TestCase):
    """Without ``assertExpectedInline``."""


def install() -> None:
    """Only where the package itself is missing."""
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:
        module = types.ModuleType("expecttest")
        module.TestCase = TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module
