from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines import netns
from tests.support.machines.commands import finish, start
from tests.support.machines.netns import run_on_each
from tests.support.machines.ranks import free_port

pytestmark = pytest.mark.slow

STEPS = 20
WORKLOAD = "timed:layers=3,backward_ms=20/10/5,gradient_mb=2,bucket_cap_mb=0.1"
GRADIENT_BYTES = 6e6


def table_row(text: str, ranks: int) -> list[str]:
    title = "Traffic between hosts, per host and outgoing link:\n"
    table = text.partition(title)[2].partition("\n\n")[0]
    (row,) = (line.split() for line in table.splitlines() if line.split()[:1] == [str(ranks)])
    return row


@pytest.mark.needs_netns
@pytest.mark.parametrize(("count", "sizes"), [(2, (2, 4)), (4, (4,))])
def test_bytes_in_the_host_table_match_interface_counters_within_2_percent(
    tmp_path: Path, count: int, sizes: tuple[int, ...]
) -> None:
    common = ["--workload", WORKLOAD, "--steps", str(STEPS), "--overhead-steps", "0", "--all"]
    common += ["--world-sizes", ",".join(map(str, sizes))]
    with netns.Hosts(count, "1gbit") as hosts:
        result = run_on_each(hosts, tmp_path / "run", common)
    assert [run["num_processes"] for run in result["runs"]] == [*sizes]
    for run, ranks in zip(result["runs"], sizes, strict=True):
        links = run["aggregated_metrics"]["host_links"]
        assert (links["hosts"], links["interfaces"], links["note"]) == (count, ["eth0"], "")
        # In the ring, one rank of each host sends to another host.
        step_bytes = 2 * (ranks - 1) / ranks * GRADIENT_BYTES
        assert links["step_bytes"] == pytest.approx(step_bytes)
        assert links["recorded_bytes"] == pytest.approx(count * step_bytes * STEPS)
        assert links["agrees"]
        assert abs(links["counted_bytes"] / (count * step_bytes * STEPS) - 1) < 0.02
        # At 1 Gbit/s the bytes take at least 48 ms, and a part of the time is waiting.
        assert 0.01 < links["in_flight_gbit_per_s"] < 1.0
        assert links["step_gbit_per_s"] < links["in_flight_gbit_per_s"]
        row = table_row(result["text"], ranks)
        assert row[:4] == [str(ranks), str(count), "eth0", f"{step_bytes / 1e6:g}"]
        assert row[-1] == "yes"


def test_machine_0_reports_the_ranks_of_both_machines(tmp_path: Path) -> None:
    out = tmp_path / "run"
    common = ["-m", "commprof.run", "--nnodes", "2", "--nproc", "1", "--output", str(out)]
    common += ["--rdzv-endpoint", f"localhost:{free_port()}", "--workload", "timed:layers=2"]
    common += ["--steps", "4", "--overhead-steps", "0"]
    second = start(*common, "--node-rank", "1")
    first = start(*common, "--node-rank", "0")
    shown, done = finish(first), finish(second)
    assert "Machine 1 is done; machine 0 prints the report of" in done.stdout
    assert (first.returncode, second.returncode) == (0, 0), shown.stderr + done.stderr
    result = json.loads((out / "result.json").read_text())
    assert [run["num_processes"] for run in result["runs"]] == [2]
    assert {rank["rank"] for rank in result["runs"][0]["rank_results"]} == {0, 1}
