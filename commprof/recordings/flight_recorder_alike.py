"""Gives alike entries of dumps the same id, so that each kind of entry is read once.

Entries are alike if they differ only in ``INTEGERS``, in other times and in ``_IGNORED``. Most
entries of a job are alike.
"""

from __future__ import annotations

import marshal
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

#: Integers in which alike entries may differ, in the order of the columns that ``read`` returns.
INTEGERS: Final = (*("record_id", "seq_id", "collective_seq_id", "p2p_seq_id", "time_created_ns"),)
#: Fields of which only the truth value is used.
_TRUTHS: Final = ("time_discovered_started_ns", "time_discovered_completed_ns")
_IGNORED: Final = ("op_id", "duration_ms", "thread_id", "thread_name", "timeout_ms")
_WITHOUT_REFERENCES: Final = 2


class AlikeEntries(Protocol):
    """Gives ids to the entries of all dumps. Entries with the same id are alike."""

    def read(self, dictionaries: list[Any]) -> tuple[Ints, Ints]:
        """Returns the id of each entry, from 0 up, and a row with the ``INTEGERS`` of each entry.

        An integer is -1 if it is missing or out of range (0 to 2**63 - 1).

        Raises:
            ValueError: an entry is not a dictionary of plain values.
        """


class AlikeInPython:
    """Does in Python what ``csrc/reading/alike_dictionaries.cpp`` does in C++."""

    def __init__(self) -> None:
        """Starts without entries."""
        self._numbers: dict[bytes, int] = {}

    def read(self, dictionaries: list[Any]) -> tuple[Ints, Ints]:
        """See :class:`AlikeEntries`."""
        if not all(isinstance(entry, dict) for entry in dictionaries):
            raise ValueError("an entry is not a dictionary")
        apart = {*INTEGERS, *_IGNORED}
        numbers = [
            self._numbers.setdefault(
                marshal.dumps(
                    [
                        (key, bool(value) if key in _TRUTHS else value)
                        for key, value in entry.items()
                        if key not in apart
                    ],
                    _WITHOUT_REFERENCES,
                ),
                len(self._numbers),
            )
            for entry in dictionaries
        ]
        rows = [[_integer(entry.get(key)) for key in INTEGERS] for entry in dictionaries]
        return np.array(numbers, np.int64), np.array(rows, np.int64).reshape(-1, len(INTEGERS))


def _integer(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**63 else -1


def alike_entries() -> AlikeEntries:
    """Returns the C++ implementation, or the one in Python if the C++ module is missing."""
    try:
        from commprof._reading import AlikeDictionaries
    except ImportError:
        return AlikeInPython()
    return AlikeDictionaries(list(INTEGERS), list(_TRUTHS), list(_IGNORED))
