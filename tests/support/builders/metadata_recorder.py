from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any


class Recorder:
    def __init__(self, write_errno: int = 0) -> None:
        self.metadata: dict[str, Any] = {}
        self._write_errno = write_errno

    def stats(self) -> Any:
        return SimpleNamespace(write_errno=self._write_errno)

    def add_metadata(self, text: str) -> None:
        self.metadata |= json.loads(text)
