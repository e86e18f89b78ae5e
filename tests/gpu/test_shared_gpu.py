from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.align.device_timeline import on_device_timeline, timed_collectives
from commprof.analysis.run import analyse_in_detail
from commprof.trace import columns
from commprof.trace.codes import OPS
from commprof.trace.reader import read_trace
from tests.support.machines.commands import RUN, TORCHRUN, call

pytestmark = pytest.mark.needs_gpu

SCRIPT = str(Path(__file__).parents[1] / "support/scripts/nccl.py")
#: The GPU serves the two ranks in turns of about 2 ms each, so the delay must be far longer.
LATE_MS = 100
EXPECTED = {"ddp": ("all_reduce",), "fsdp2": ("all_gather", "reduce_scatter")}


def losses(output: str) -> list[str]:
    found = sorted(re.findall(r"^rank \d 0x.*", output, re.MULTILINE))
    assert len(found) == 2, output
    return found


def recorded(strategy: str, late_ms: int, directory: Path, *options: str) -> tuple[str, Path]:
    done = call(
        *(*RUN, "--nproc", "2", "--output", str(directory), *options, SCRIPT),
        *(strategy, str(late_ms)),
        timeout_s=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, directory


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def late(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    strategy = request.param
    return strategy, *recorded(strategy, LATE_MS, tmp_path_factory.mktemp(strategy) / "run")


def test_every_collective_of_every_rank_is_timed(late: tuple[str, str, Path]) -> None:
    strategy, _, directory = late
    for rank in range(2):
        trace = read_trace(directory / f"world_2/rank_{rank}.trace")
        table = columns.collectives(on_device_timeline(trace))
        assert len(table) > 30
        assert timed_collectives(trace) == len(table)
        assert (table.end_ns > table.issue_ns).all()
        ops = [OPS[code] for code in table.op]
        assert all(any(name.startswith(op) for name in ops) for op in EXPECTED[strategy]), ops


def test_the_late_rank_is_named_and_the_wait_for_it_is_measured(
    late: tuple[str, str, Path],
) -> None:
    _, output, directory = late
    result, details = analyse_in_detail(directory)
    wait_ms = np.median(details[0].parts_ms["wait"], axis=1)
    assert wait_ms[0] == pytest.approx(LATE_MS, abs=0.2 * LATE_MS)
    assert wait_ms[1] < 0.2 * LATE_MS
    found = result.worlds[0].lateness.late_rank
    assert found is not None
    assert found.rank == 1
    assert "rank 1 delays the step" in output


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("mode", ["full", "always-on"])
def test_losses_are_bit_identical_with_and_without_recording(
    strategy: str, mode: str, tmp_path: Path
) -> None:
    plain = call(*TORCHRUN, SCRIPT, strategy, "0", timeout_s=180)
    assert plain.returncode == 0, plain.stderr
    output, _ = recorded(strategy, 0, tmp_path / "run", "--mode", mode)
    assert losses(plain.stdout) == losses(output)
