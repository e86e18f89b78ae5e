from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from commprof.trace.reader import read_trace
from commprof.tune.trials.found import analyse_trial
from commprof.tune.trials.plan import parse_trial
from tests.support.machines.commands import RUN, call
from tests.support.machines.netns import Hosts
from tests.support.machines.ranks import run_on_hosts
from tests.support.ranks.plain_script import LAYER_BYTES, plain_script

pytestmark = pytest.mark.slow

#: 8 MB of gradients take 64 ms at 1 Gbit/s; the first half is ready after 4 of 8 ms of backward.
HEAVY = "timed:layers=2,data_ms=1,forward_ms=1,backward_ms=4,gradient_mb=4,bucket_cap_mb=1"
LIGHT = "timed:layers=4,data_ms=1,forward_ms=4,backward_ms=6,gradient_mb=0.01"


@pytest.mark.needs_netns
@pytest.mark.measures
def test_on_a_slow_link_the_candidate_with_the_fewest_bytes_wins(tmp_path: Path) -> None:
    plan = "fp16,topk:ratio=0.01,rounds=4,block=3"
    with Hosts(2, "1gbit") as hosts:
        run_on_hosts(hosts, tmp_path, HEAVY, parse_trial(plan).steps, trial=plan)
    result = analyse_trial(tmp_path / "world_2")
    assert result is not None
    assert (result.rounds, result.verdict.choice) == (4, "topk:ratio=0.01")
    none, headroom = result.of_role("baseline"), result.of_role("headroom")
    fp16, topk = result.candidates[3:]
    # A step has 11 ms of work, and 64 ms on the wire that begin after 7 ms.
    assert 11 <= headroom.step_ms < 40
    assert 68 <= none.step_ms < 140
    assert topk.step_ms < fp16.step_ms < none.step_ms
    assert none.wire_bytes == pytest.approx(8e6, rel=0.01)
    assert fp16.wire_bytes == pytest.approx(4e6, rel=0.01)
    assert topk.wire_bytes < 0.2e6
    assert 0.5 < result.link_gbit_per_s < 1.1
    for one in (fp16, topk):
        assert one.break_even is not None
        assert one.break_even.gbit_per_s is not None
        assert one.break_even.gbit_per_s.value > 1.0  # above the link's rate, so compression pays
    assert fp16.relative_error < 1e-3 < topk.relative_error
    assert topk.overhead_reduction is not None
    assert topk.overhead_reduction.value > 0.5
    assert topk.loss_effect is None


@pytest.mark.needs_netns
@pytest.mark.measures
def test_on_a_slow_link_fsdp2_without_resharding_after_forward_wins(tmp_path: Path) -> None:
    """A rank sends 4 MB in each of 2 gatherings and 8 MB in gloo's reduction, in 128 ms."""
    plan = "reshard-after-forward=false,prefetch=1,rounds=4,block=3"
    with Hosts(2, "1gbit") as hosts:
        steps = parse_trial(plan).steps
        run_on_hosts(hosts, tmp_path, HEAVY, steps, trial=plan, strategy="fsdp")
    result = analyse_trial(tmp_path / "world_2")
    assert result is not None
    assert (result.rounds, result.verdict.choice) == (4, "reshard-after-forward=false")
    none, headroom = result.of_role("baseline"), result.of_role("headroom")
    kept, ahead = result.candidates[3:]
    # 11 ms of work hide a part of the 128 ms on the wire. A busy machine adds to both steps.
    assert 11 <= headroom.step_ms < none.step_ms - 100
    assert kept.step_ms < none.step_ms
    assert none.wire_bytes == pytest.approx(16e6, rel=0.01)
    assert kept.wire_bytes == pytest.approx(12e6, rel=0.01)
    held = [one.held_bytes for one in (kept, ahead)]
    assert held == [pytest.approx(8e6, rel=0.01), pytest.approx(4e6, rel=0.01)]
    assert kept.exact
    assert "It keeps up to 8 MB more of gathered parameters" in " ".join(result.verdict.sentences)


def run(tmp_path: Path, *arguments: str) -> tuple[Any, str]:
    ended = call(*RUN, "--nproc", "2", "--output", str(tmp_path / "run"), *arguments, timeout_s=120)
    assert ended.returncode == 0, ended.stderr
    return json.loads((tmp_path / "run" / "result.json").read_text()), ended.stdout + ended.stderr


@pytest.mark.measures
def test_a_trial_with_hidden_communication_says_it_is_not_the_bottleneck(tmp_path: Path) -> None:
    result, text = run(
        tmp_path, "--workload", LIGHT, "--trial", "int8,bucket-cap=0.02,rounds=3,block=2"
    )
    trial = result["trial"]
    assert trial["verdict"]["answer"] == "not-the-bottleneck"
    assert trial["rounds"] == 3
    assert "Communication is not the bottleneck" in text
    assert re.search(r"^none again +\S+ \[\S+ \S+\] +\S+ \[", text, re.MULTILINE)
    assert "To apply it" not in text
    assert result["context"]["trial"].startswith("none,int8,bucket-cap=0.02,rounds=3")
    again = call("-m", "commprof", "report", str(tmp_path / "run"), "--all")
    assert "Communication is not the bottleneck" in again.stdout


def test_an_unchanged_ddp_script_takes_part_in_a_trial(tmp_path: Path) -> None:
    plan = "int8,hierarchical,bucket-cap=0.1,rounds=3,block=2"
    steps = parse_trial(plan).steps
    script = tmp_path / "train.py"
    script.write_text(plain_script(steps=steps, options={"find_unused_parameters": True}))
    result, text = run(tmp_path, "--trial", plan, str(script))
    trial = result["trial"]
    labels = [one["label"] for one in trial["candidates"]]
    assert labels == ["none", "none again", "noop", "int8", "hierarchical"]
    (left_out,) = trial["left_out"]
    assert left_out["candidate"] == "bucket-cap=0.1"
    assert "find_unused_parameters" in left_out["reason"]
    assert "bucket-cap=0.1 takes no part in the trial: DDP's buckets" in text
    int8 = trial["candidates"][3]
    assert int8["exact"] is False
    assert 0 < int8["relative_error"] < 0.03
    assert abs(int8["loss_effect"]["value"]) < 0.5
    assert f"a trial of 5 candidates begins; it takes {5 * 3 * 4} steps" in text


SHARDED = """
from torch.distributed.fsdp import fully_shard
def DistributedDataParallel(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)
"""


def test_an_fsdp2_script_takes_part_unchanged_and_trains_with_a_setting(tmp_path: Path) -> None:
    plan = "reshard-after-forward=false,prefetch=1,int8,rounds=3,block=1"
    script = tmp_path / "train.py"
    script.write_text(plain_script(steps=parse_trial(plan).steps, layers=3, first=SHARDED))
    result, text = run(tmp_path / "trial", "--trial", plan, str(script))
    candidates = result["trial"]["candidates"]
    assert [one["label"] for one in candidates[3:]] == plan.split(",")[:2]
    # Without resharding a rank holds three gathered layers, with prefetch=1 one gathered layer.
    assert candidates[3]["held_bytes"] == 3 * candidates[4]["held_bytes"] == 3 * LAYER_BYTES
    assert candidates[0]["wire_bytes"] == pytest.approx(3 * 2 * LAYER_BYTES)
    assert candidates[3]["wire_bytes"] == pytest.approx(3 * 1.5 * LAYER_BYTES)
    assert "int8 takes no part in the trial: the model is sharded by FSDP2" in text
    script.write_text(plain_script(steps=12, layers=3, first=SHARDED))
    result, _ = run(tmp_path / "set", "--fsdp", "reshard-after-forward=false", str(script))
    assert result["context"]["fsdp"] == "reshard-after-forward=false"
    rows = result["runs"][0]["aggregated_metrics"]["collectives"]
    gathers = [row for row in rows if row["op"] == "all_gather_into_tensor"]
    assert [row["calls_per_step"] for row in gathers] == [3]


UNKEPT = """
import threading

class Locked(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        if dist.get_rank() == 1:
            self.state[self.param_groups[0]["params"][0]]["lock"] = threading.Lock()

torch.optim.SGD = Locked
"""


@pytest.mark.parametrize(("first", "plan"), [("", "int8"), (SHARDED, "reduce-dtype=bf16")])
def test_no_rank_begins_a_trial_if_one_cannot_keep_its_state(
    tmp_path: Path, first: str, plan: str
) -> None:
    plan += ",rounds=3,block=1"
    script = tmp_path / "train.py"
    steps = parse_trial(plan).steps
    script.write_text(plain_script(steps=steps, layers=3, first=first, wrapped=UNKEPT))
    _, text = run(tmp_path, "--trial", plan, str(script))
    assert "cannot be saved and restored: rank 1: cannot pickle" in text
    assert "candidates begins" not in text


def test_a_script_that_ends_before_its_trial_leaves_whole_records(tmp_path: Path) -> None:
    plan = "int8,bucket-cap=0.1,rounds=20,block=2"
    of_round = 5 * 4  # 5 candidates with 4 steps each, warm-up included
    script = tmp_path / "train.py"
    script.write_text(plain_script(steps=10 + 4 * of_round))
    result, text = run(tmp_path, "--trial", plan, str(script))
    assert "Traceback" not in text
    assert "os._exit" not in text
    ended = re.search(r"the script ended after (\d+) of the trial's 400 steps", text)
    assert ended is not None
    assert 4 * of_round <= int(ended[1]) < 5 * of_round
    assert result["trial"]["rounds"] == 4
    for rank in (0, 1):
        trace = read_trace(tmp_path / "run" / "world_2" / f"rank_{rank}.trace")
        assert (trace.complete, trace.problems) == (True, ())


OWN_HOOK = """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
"""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": 1}, "the script ended after 1 step, but a trial begins after 3 steps"),
        ({"wrapped": OWN_HOOK}, "every DDP model has a communication hook of its own"),
        (
            {"wrapped": "ddp = model", "first": "DistributedDataParallel = lambda model: model"},
            "the script made neither a DDP model",
        ),
    ],
)
def test_a_trial_that_cannot_begin_reports_why_and_the_script_still_runs(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(plain_script(**{"steps": 20, **changes}))
    result, text = run(tmp_path, "--trial", "int8", str(script))
    assert f"no trial took place: {reason}" in text
    assert "trial" not in result or result["trial"] is None


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_a_trial_of_hierarchical_exchanges_completes_all_rounds(tmp_path: Path, hosts: str) -> None:
    """Hosts `ab` have a rank each, and share no memory; hosts `aab` differ in size."""
    plan = "hierarchical,int8:hierarchical=1,rounds=3,block=2"
    named = f"os.environ['COMMPROF_HOST'] = '{hosts}'[int(os.environ['RANK'])]"
    script = tmp_path / "train.py"
    script.write_text(plain_script(steps=parse_trial(plan).steps, first=named))
    words = ["--nproc", str(len(hosts)), "--output", str(tmp_path / "run"), "--trial", plan]
    ended = call(*RUN, *words, str(script), timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    trial = json.loads((tmp_path / "run" / "result.json").read_text())["trial"]
    assert trial["rounds"] == 3
    labels = [one["label"] for one in trial["candidates"]]
    assert labels[3:] == ["hierarchical", "int8:hierarchical=1"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--nproc", "1", "--trial", "int8"), "2 ranks or more, not [1]"),
        (("--nproc", "2", "--trial", "zip"), "unknown technique 'zip'"),
        (("--nproc", "2", "--trial", "int8", "--hook", "fp16"), "exclude each other"),
        (("--nproc", "2", "--trial", "static-graph"), "cannot change between steps: DDP learns"),
    ],
)
def test_an_impossible_trial_is_refused_before_the_run(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    ended = call(*RUN, *arguments, "--output", str(tmp_path / "run"), cold=True)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert not (tmp_path / "run").exists()
