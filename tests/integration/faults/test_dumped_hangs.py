from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commprof.analysis.late.dumped_diagnosis import Diagnosis
from commprof.analysis.late.dumped_hang import diagnosis
from tests.support.machines.fork_server import Forked

_RANK = str(Path(__file__).parents[2] / "support/ranks/hung_gloo_rank.py")

FEW = [("busy", 3, 1), ("chain", 3, 2)]
STUDY = [
    *[("absent", ranks, guilty) for ranks in (2, 3, 4) for guilty in (0, ranks - 1)],
    *[("busy", 2, 0), ("busy", 3, 1), ("busy", 4, 1), ("busy", 4, 2)],
    *[("mismatch", 3, 1), ("mismatch", 3, 2), ("mismatch", 4, 2), ("mismatch", 4, 3)],
    *[("chain", 2, 1), ("chain", 3, 2), ("chain", 4, 3)],
    *[("circle", 2, 0), ("circle", 3, 1), ("circle", 4, 3)],
]


def hang(folder: Path, cause: str, ranks: int, guilty: int) -> Diagnosis:
    started = [
        Forked([_RANK, str(folder), *map(str, (rank, ranks, cause, guilty))], os.environ)
        for rank in range(ranks)
    ]
    try:
        for process in started:
            process.wait(120)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return diagnosis(folder)


def check(found: Diagnosis, cause: str, ranks: int, guilty: int) -> None:
    kind = "absent" if cause in ("busy", "chain") else cause
    assert (found.kind, [one.rank for one in found.culprits]) == (kind, [guilty])
    if cause == "circle":
        differs = "the majority" if ranks > 2 else "its own earlier steps"
        assert found.sentence.endswith(f"; rank {guilty} differs from {differs}")


@pytest.mark.parametrize(
    ("cause", "ranks", "guilty"),
    [pytest.param(*one, marks=() if one in FEW else pytest.mark.slow) for one in STUDY],
)
def test_the_cause_and_culprit_of_a_gloo_hang_are_found_from_its_dumps(
    tmp_path: Path, cause: str, ranks: int, guilty: int
) -> None:
    assert len(STUDY) == 20
    check(hang(tmp_path, cause, ranks, guilty), cause, ranks, guilty)


_SERVED = """
import sys, time, torch, torch.distributed as dist
from torch.distributed.elastic.control_plane import _worker_server

folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
with _worker_server(f"{folder}/rank_{rank}.sock"):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    open(f"{folder}/ready_{rank}", "w").close()
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    time.sleep(600)
"""


def asked(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(20)
        server.connect(str(path))
        connection = http.client.HTTPConnection("localhost")
        connection.sock = server
        connection.request("POST", "/handler/fr_trace_json")
        with connection.getresponse() as answer:
            assert answer.status == 200
            return answer.read()


@pytest.mark.slow
def test_a_hang_of_gloo_is_diagnosed_from_what_torch_s_worker_server_answers(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, "-c", _SERVED, str(tmp_path), str(rank)], env=environment)
        for rank in range(2)
    ]
    try:
        until = time.monotonic() + 120
        while len(list(tmp_path.glob("ready_*"))) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)  # time for rank 0 to issue the all-reduce in which it hangs
        dumps = tmp_path / "dumps"
        dumps.mkdir()
        for rank in range(2):
            (dumps / f"rank_{rank}.json").write_bytes(asked(tmp_path / f"rank_{rank}.sock"))
    finally:
        for process in started:
            process.kill()
            process.wait()
    found = diagnosis(dumps)
    assert (found.kind, [one.rank for one in found.culprits]) == ("absent", [1])
    assert found.culprits[0].why.startswith("rank 1 did not arrive at all_reduce number 3 of")
