"""Two hosts on a 1 Gbit/s link: what the run table says of the link, against the interfaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import netns
from tests.support.host_runs import run_on_each

pytestmark = [
    pytest.mark.needs_netns,
    pytest.mark.once_per_change(
        *("commprof/analysis/between_hosts.py", "commprof/analysis/host_links.py"),
        *("commprof/analysis/interfaces.py", "commprof/capture/witnesses.py", "commprof/launch"),
        *("commprof/commands/run.py", "tests/support/host_runs.py", "tests/support/netns.py"),
    ),
]

STEPS = 20
WORKLOAD = "timed:layers=3,backward_ms=20/10/5,gradient_mb=2,bucket_cap_mb=0.1"


def test_the_interfaces_counted_what_the_table_says_within_2_percent(tmp_path: Path) -> None:
    common = ["--workload", WORKLOAD, "--steps", str(STEPS), "--overhead-steps", "0"]
    with netns.Hosts(2, "1gbit") as hosts:
        result = run_on_each(hosts, tmp_path / "run", [*common, "--world-sizes", "2"])
    (run,) = result["runs"]
    links = run["aggregated_metrics"]["host_links"]
    assert (links["hosts"], links["interfaces"], links["note"]) == (2, ["eth0"], "")
    # Each host's rank sends its 6 MB once a step: 2 (n - 1) / n = 1.
    assert links["step_bytes"] == pytest.approx(6e6)
    assert links["recorded_bytes"] == pytest.approx(2 * 6e6 * STEPS)
    assert links["agrees"]
    assert abs(links["difference"]) < 0.02
    # 6 MB take 48 ms at 1 Gbit/s, of which some is waiting.
    assert 0.2 < links["in_flight_gbit_per_s"] < 1.0
    assert links["step_gbit_per_s"] < links["in_flight_gbit_per_s"]
    assert "Between hosts, per host and outgoing link:" in result["text"]
