from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commprof.tune.trials.plan import parse_trial
from tests.support.machines.commands import RUN, call

pytestmark = [pytest.mark.slow, pytest.mark.needs("accelerate")]
SCRIPT = Path(__file__).parents[3] / "support" / "scripts" / "accelerate_fsdp2.py"
#: A layer has 256 x 256 weights and 256 biases of 4 bytes each.
LAYER_BYTES = 4 * 256 * 257


def run(directory: Path, steps: int, *arguments: str) -> dict[str, Any]:
    given = ("--nproc", "2", "--output", str(directory), *arguments, str(SCRIPT), str(steps))
    ended = call(*RUN, *given, timeout_s=120)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return result


def test_an_accelerate_fsdp2_script_takes_part_in_a_trial(tmp_path: Path) -> None:
    plan = "reshard-after-forward=false,prefetch=1,rounds=3,block=1"
    trial = run(tmp_path / "run", parse_trial(plan).steps, "--trial", plan)["trial"]
    labels = [one["label"] for one in trial["candidates"][3:]]
    assert (labels, trial["rounds"]) == (["reshard-after-forward=false", "prefetch=1"], 3)
    assert trial["candidates"][3]["wire_bytes"] < trial["candidates"][0]["wire_bytes"]


def test_an_accelerate_fsdp2_script_is_predicted(tmp_path: Path) -> None:
    run(tmp_path / "run", 14)
    asked = ("predict", str(tmp_path / "run"), "--reshard-after-forward", "on,off")
    ended = call("-m", "commprof", *asked, "--format", "json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["is_sharded"] is True
    again, kept = (answer["prediction"] for answer in document["answers"])
    # Backward gathers all three layers again, half of their bytes from the other rank.
    assert again["sent_bytes"] - kept["sent_bytes"] == 3 * LAYER_BYTES / 2
