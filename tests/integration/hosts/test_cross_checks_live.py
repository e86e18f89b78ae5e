from __future__ import annotations

from pathlib import Path

import pytest

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.trace.run.run_directory import WorldRun
from tests.support.analysed import analyse_world, problems_of
from tests.support.machines import netns
from tests.support.machines.ranks import run_here, run_on_hosts

WORKLOAD = "timed:layers=3,backward_ms=20/10/5,gradient_mb=2,bucket_cap_mb=0.1"
STEPS = 20


def checks_of(run: WorldRun) -> dict[str, CrossCheck]:
    result = analyse_world(run)
    assert result is not None
    assert problems_of(result) == []
    return {check.name: check for check in result.cross_checks}


@pytest.mark.slow
@pytest.mark.needs_netns
def test_interface_counters_match_the_bytes_that_two_hosts_must_send(tmp_path: Path) -> None:
    with netns.Hosts(2, "1gbit") as hosts:
        found = checks_of(run_on_hosts(hosts, tmp_path, WORKLOAD, STEPS))["network"]
    assert found.what == "bytes sent by eth0, 2 hosts"
    # Each of the 2 ranks sends its 6 MB once per step, because 2 (n - 1) / n is 1.
    assert found.ours == pytest.approx(2 * 6 * STEPS)
    assert found.other == pytest.approx(found.ours, rel=0.05)
    assert found.agrees


@pytest.mark.slow
@pytest.mark.measures
def test_recorded_bytes_and_backward_times_match_the_log_of_ddp(tmp_path: Path) -> None:
    found = checks_of(run_here(tmp_path, WORKLOAD, 2, STEPS))
    assert (found["ddp_bytes"].ours, found["ddp_bytes"].other) == (6.0, 6.0)
    # Backward sleeps 35 ms; copies and late wake-ups add to this time.
    assert 34 < found["ddp_backward"].ours < 45
    assert found["ddp_backward"].other == pytest.approx(found["ddp_backward"].ours, rel=0.2)
    assert found["phases"].agrees
    assert found["loop_clock"].agrees
    # This run's payload is only a part of the bytes sent through `lo`.
    assert found["network"].what == "bytes sent by lo, 1 host"
    assert found["network"].other > 0.98 * 2 * 6 * STEPS
