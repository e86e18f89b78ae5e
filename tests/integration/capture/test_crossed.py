from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from commprof import _native
from commprof.trace import columns
from commprof.trace.exchanged import trained_by
from commprof.trace.reader import read_trace
from commprof.trace.schema import OPS, Phase
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.crossed import PASSES, STEPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="Python capture sees DDP's buckets only"),
]

#: Each rank must issue these calls. FSDP2's root unit keeps its parameters after the forward pass,
#: so the backward pass gathers nothing.
EXPECTED = {
    # DDP has one bucket in the first pass that exchanges, and two buckets in later passes.
    "compiled_ddp_hook_no_sync": {"all_reduce": 1 + 2 * (STEPS - 1)},
    "three_recorders": {"all_reduce": 10},
    "functional_results": {
        "all_reduce": 2,
        "all_gather_into_tensor_coalesced": 1,
        "reduce_scatter_tensor_coalesced": 1,
    },
    "groups_beside_checkpoints": {"all_reduce": 3 * 8, "barrier": 1},
    # The pass in no_sync also exchanges, because the forward pass before had no backward pass.
    "stray_forward_undoes_no_sync": {"all_reduce": 2},
    "flat_sharding_accumulated": {"reduce_scatter_tensor": 2 * STEPS},
    # The input needs no gradient, so the backward pass has no all-reduce.
    "sharded_tensor_parallel_accumulated": {
        "all_reduce": STEPS * PASSES,
        "all_gather_into_tensor": STEPS * PASSES,
        "reduce_scatter_tensor": STEPS,
    },
}
FOUR_RANKS = ["sharded_tensor_parallel_accumulated"]
TWO_RANKS = [name for name in EXPECTED if name not in FOUR_RANKS]


@pytest.mark.parametrize(("jobs", "ranks"), [(TWO_RANKS, 2), (FOUR_RANKS, 4)], ids=["2", "4"])
def test_crossed_parts_keep_their_bits_and_every_call_is_counted(
    tmp_path: Path, jobs: list[str], ranks: int
) -> None:
    outputs = run_module("tests.support.ranks.capture.crossed", [str(tmp_path), *jobs], ranks)
    for rank, output in enumerate(outputs):
        told = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        for name in jobs:
            assert told[name]["plain"] == told[name]["recorded"], name
            trace = read_trace(tmp_path / name / f"rank_{rank}.trace")
            seen = Counter(OPS[op] for op in columns.collectives(trace).op)
            for op, count in EXPECTED[name].items():
                assert seen[op] == count, (name, seen)
            if "sharding" in name or "sharded" in name:
                forward = (columns.phases(trace).key == Phase.FORWARD).sum()
                assert forward == STEPS * PASSES, name
                trained = trained_by(trace.metadata)
                assert trained is not None
                assert trained.sharded
                assert trained.flat == name.startswith("flat"), name
