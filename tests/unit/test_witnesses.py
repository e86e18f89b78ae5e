"""What others counted while capture ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

from commprof.capture import witnesses
from commprof.capture.witnesses import Witnesses, interface_bytes

PROC_NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 1000       5    0    0    0     0          0         0     2000       5    0    0
  eth0:70 1    0    0    0     0          0         0        90       1    0    0
"""


class Kept:
    """Stands in for a recorder: keeps the documents."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []

    def add_metadata(self, text: str) -> None:
        self.documents.append(json.loads(text)["witnesses"])


def test_the_kernel_s_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").write_text(PROC_NET_DEV)
    monkeypatch.setattr(witnesses, "_COUNTERS", tmp_path / "dev")
    assert interface_bytes() == {"lo": (1000, 2000), "eth0": (70, 90)}
    monkeypatch.setattr(witnesses, "_COUNTERS", tmp_path / "none")
    assert interface_bytes() == {}


def test_only_bytes_of_the_time_with_capture_on_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # On from 100 to 150 and from 1000 to 1010: 60 sent. An interface that appears later has no
    # count to start from.
    seen = iter(
        [{"lo": (0, 100)}, {"lo": (5, 150)}, {"lo": (5, 1000)}, {"lo": (9, 1010), "x": (1, 1)}]
    )
    monkeypatch.setattr(witnesses, "interface_bytes", lambda: next(seen))
    kept, counting = Kept(), Witnesses()
    counting.start()
    counting.set_enabled(True)  # it is on already
    counting.set_enabled(False)
    counting.set_enabled(False)
    counting.set_enabled(True)
    counting.stop(kept)  # type: ignore[arg-type]
    assert kept.documents[0]["interfaces"] == {"lo": {"received_bytes": 9, "sent_bytes": 60}}
    assert kept.documents[0]["ddp_logs"] == []


def test_ddp_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    original = DistributedDataParallel.forward
    counting = Witnesses()
    counting.start()
    assert DistributedDataParallel.forward is not original
    counting.stop(Kept())  # type: ignore[arg-type]
    assert DistributedDataParallel.forward is original
