"""What the hypervisor took of this machine's processors while something was measured."""

from __future__ import annotations

from pathlib import Path

#: Of the first line of ``/proc/stat``, behind its name: proc(5).
_IDLE, _IOWAIT, _STEAL, _KNOWN = 3, 4, 7, 8

#: Share above which a measurement is done again.
MOST_STOLEN = 0.02


class Stolen:
    """Counts from when it is made.

    The share is of the time that processors had something to run: a job that mostly sleeps is
    disturbed by less.
    """

    def __init__(self) -> None:
        self._begin = _ticks()

    def share(self) -> float:
        """Stolen over stolen and run, 0 to 1; 0 where nothing ran or the kernel does not tell."""
        begin, end = self._begin, _ticks()
        if len(begin) < _KNOWN or len(end) < _KNOWN:
            return 0.0
        spent = [after - before for before, after in zip(begin, end, strict=True)]
        wanted = sum(spent) - spent[_IDLE] - spent[_IOWAIT]
        return spent[_STEAL] / wanted if wanted > 0 else 0.0


def _ticks() -> list[int]:
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    return [int(word) for word in first.split()[1 : 1 + _KNOWN]]
