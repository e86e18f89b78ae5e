"""``commprof run --bucket-cap-mb`` on real ranks of a script that knows nothing of it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import RUN, call

#: 1.05 MB of gradients, which fit into one bucket of DDP's own.
SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
ddp = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    ddp(torch.randn(4, 256)).square().mean().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def test_a_script_s_buckets_are_cut_as_asked(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ("--nproc", "2", "--bucket-cap-mb", "0.3", "--output", str(tmp_path / "run"))
    ended = call(*RUN, *options, str(script), timeout_s=120)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["context"]["bucket_cap_mb"] == 0.3
    rows = result["runs"][0]["aggregated_metrics"]["collectives"]
    buckets = [row for row in rows if row["op"] == "all_reduce"]
    assert sum(row["calls_per_step"] for row in buckets) >= 2
    # A bucket is closed by the first gradient that reaches the cap.
    assert max(row["size_bytes"][1] for row in buckets) <= 0.3 * 2**20 + 256 * 256 * 4
