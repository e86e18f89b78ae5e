"""The traces of the job that a run directory holds now, and their tails.

``commprof run`` trains several world sizes, and strategies, one after the other, each into a
directory of its own: the job is the one that was written to last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from commprof.monitor.follow import TraceTail
from commprof.trace.run.endings import attempt_paths, rank_and_attempt
from commprof.trace.schema import Records

#: Where a run keeps traces, the run directory first.
_PLACES: Final = (".", "job_*", "world_*", "world_*/job_*", "*/world_*")
#: Files held open at once.
_MOST_RANKS: Final = 4096


def newest_job(run: Path, nested: bool = True) -> Path | None:
    """The directory whose traces were written to last; None as long as there is none.

    Without ``nested`` it is ``run`` or none.
    """
    newest: tuple[int, Path] | None = None
    for pattern in _PLACES if nested else _PLACES[:1]:
        for directory in [run] if pattern == "." else _found(run, pattern):
            written_ns = max((_written_ns(path) for path in _traces(directory).values()), default=0)
            if written_ns and (newest is None or written_ns > newest[0]):
                newest = written_ns, directory
    return newest[1] if newest else None


class JobTail:
    """All traces of one job: of each rank that of its last attempt."""

    def __init__(
        self, directory: Path, recent_bytes: int | None = None, only_rank: int | None = None
    ) -> None:
        """Opens nothing yet.

        Args:
            directory: where the traces are.
            recent_bytes: of each trace, see :class:`TraceTail`.
            only_rank: leave the traces of all others alone; None to follow all.
        """
        self.directory = directory
        #: By rank; those whose metadata was read.
        self.tails: dict[int, TraceTail] = {}
        self._recent_bytes = recent_bytes
        self._only_rank = only_rank
        self._open: dict[Path, TraceTail] = {}
        #: How often a rank began again with another trace.
        self.restarts = 0

    @property
    def caught_up(self) -> bool:
        """Whether the last look came to the end of every trace."""
        return all(tail.caught_up for tail in self.tails.values())

    def poll(self) -> dict[int, Records]:
        """What is new, by rank."""
        for rank, path in list(_traces(self.directory).items())[:_MOST_RANKS]:
            if path not in self._open and self._only_rank in (None, rank):
                self._open[path] = TraceTail(path, self._recent_bytes)
        found: dict[int, Records] = {}
        for path, tail in list(self._open.items()):
            records = tail.poll()
            if tail.metadata is None:
                continue
            rank = int(tail.metadata["rank"])
            before = self.tails.get(rank)
            if before is not None and before is not tail:
                if _attempt(path) < _attempt(before.path):
                    tail.close()
                    continue
                before.close()
                self.restarts += 1
                found.pop(rank, None)
            self.tails[rank] = tail
            found[rank] = records
        return found

    def close(self) -> None:
        """Closes all files."""
        for tail in self._open.values():
            tail.close()


def _traces(directory: Path) -> dict[int, Path]:
    """By rank the trace of its last attempt."""
    try:
        attempts = attempt_paths(directory)
    except OSError:
        return {}
    return {rank: path for paths in attempts.values() for rank, path in paths.items()}


def _attempt(path: Path) -> int:
    return (rank_and_attempt(path) or (0, 0))[1]


def _found(run: Path, pattern: str) -> Iterator[Path]:
    try:
        yield from sorted(run.glob(pattern))
    except OSError:
        return


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
