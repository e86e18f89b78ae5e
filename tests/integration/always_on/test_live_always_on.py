from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path

import pytest

from commprof import _native
from commprof.monitor.metrics.metrics import METRICS
from tests.support.machines.commands import RUN, start
from tests.support.machines.programs.prometheus import target, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
]

SCRIPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
while True:
    optimizer.zero_grad()
    model(torch.randn(2, 64)).square().sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""
UNKNOWN = {
    *("commprof_since_step_seconds", "commprof_hidden_seconds_total"),
    *("commprof_recent_hidden_seconds", "commprof_bus_bandwidth_bytes_per_second"),
    *("commprof_bandwidth_use_ratio", "commprof_compression_ratio"),
    *("commprof_gradient_sent_bytes_total", "commprof_gradient_plain_bytes_total"),
}
"""A job in always-on mode does not export these metrics."""
NOT_ASKED = {
    *("commprof_gradient_norm", "commprof_gradient_layer_variance"),
    "commprof_gradient_norm_cost_seconds_total",
}
ELSEWHERE = {"commprof_host_missing", "commprof_host_summary_age_seconds"}
"""Only jobs on several hosts export these metrics."""
BY_CHANCE = {"commprof_late_rank_wait_seconds", "commprof_network_bytes_total"}
"""These metrics need a late rank or a network."""

Scrape = dict[tuple[str, str], float]


def scrape(address: str) -> Scrape:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    found = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)
    return {(name, labels): float(value) for name, labels, value in found}


def steps(found: Scrape) -> float:
    counts = [value for (name, _), value in found.items() if name == "commprof_steps_total"]
    return min(counts) if len(counts) == 2 else 0


def _of(found: Scrape, metric: str, rank: str) -> dict[str, float]:
    return {labels: v for (name, labels), v in found.items() if name == metric and rank in labels}


def test_a_running_job_in_always_on_mode_exports_the_expected_metrics(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "run"
    job = start(
        *(*RUN, "--nproc", "2", "--mode", "always-on", "--hook", "fp16", "--output", str(run)),
        *("--metrics-address", "127.0.0.1:0", "--metrics-interval", "0.5"),
        str(tmp_path / "train.py"),
    )
    try:
        address = target(run)
        wait = ("commprof_exposed_seconds_total", 'part="wait",rank="0"')
        first = until(lambda: found if wait in (found := scrape(address)) else None, "a split step")
        second = until(
            lambda: found if steps(found := scrape(address)) > steps(first) + 100 else None, "steps"
        )
    finally:
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=150)
    assert job.returncode == 130
    names = {name for name, _ in second}
    assert (
        names - BY_CHANCE == {m.name for m in METRICS} - UNKNOWN - NOT_ASKED - ELSEWHERE - BY_CHANCE
    )
    mode = 'backend="gloo",mode="always-on",world_size="2"'
    assert second["commprof_job_info", mode] == 1
    for rank in ("0", "1"):
        of_rank = f'rank="{rank}"'
        assert second["commprof_rank_running", of_rank] == 1
        assert second["commprof_rank_failed", of_rank] == 0
        step_s = second["commprof_recent_step_seconds", of_rank]
        assert step_s > 0.02
        parts = _of(second, "commprof_recent_step_part_seconds", of_rank)
        assert len(parts) == 6
        assert sum(parts.values()) == pytest.approx(step_s, rel=1e-3)
        issued = _of(second, "commprof_collectives_total", of_rank)
        assert sum(issued.values()) >= steps(second)
        p50 = _of(second, "commprof_collective_p50_seconds", of_rank)
        p99 = _of(second, "commprof_collective_p99_seconds", of_rank)
        assert p50.keys() == p99.keys() != set()
        assert all(0 < p50[labels] <= p99[labels] for labels in p50)
    grown = [key for key in first.keys() & second.keys() if key[0].endswith("_total")]
    assert all(second[key] >= first[key] for key in grown)
