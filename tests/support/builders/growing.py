"""Traces of known content that grow block by block, as a running job's do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.builders import trace_bytes as made
from tests.support.builders.traces import Rank


class GrowingRun:
    """The ranks' traces in a directory, with what they recorded up to some moment."""

    def __init__(self, directory: Path, ranks: Sequence[Rank]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.ranks = {rank.rank: rank for rank in ranks}
        self.paths = {rank.rank: directory / f"rank_{rank.rank}.trace" for rank in ranks}
        self._records = {rank.rank: rank.records() for rank in ranks}
        self._written = dict.fromkeys(self.ranks, 0)

    def begin(self, *ranks: int) -> None:
        """Metadata and groups of these ranks, or of all."""
        for number in ranks or self.ranks:
            rank = self.ranks[number]
            groups = [
                made.document(made.GROUP_BLOCK, made.group(id, name=name, rank=number, size=size))
                for id, (name, size) in rank.groups.items()
            ]
            self.paths[number].write_bytes(made.trace(*groups, **rank.metadata))

    def until(self, now_ns: int, *ranks: int) -> None:
        """One more block with what these ranks, or all, recorded before that."""
        for number in ranks or self.ranks:
            records = self._records[number]
            count = int(np.searchsorted(records["timestamp_ns"], now_ns))
            new = records[self._written[number] : count]
            if len(new):
                self._append(number, made.block(made.RECORDS_BLOCK, new.tobytes()))
            self._written[number] = count

    def end(self) -> None:
        """All the rest, and the closing block."""
        self.until(2**62)
        for number in self.ranks:
            self._append(number, made.end())

    def _append(self, rank: int, data: bytes) -> None:
        with self.paths[rank].open("ab") as file:
            file.write(data)
