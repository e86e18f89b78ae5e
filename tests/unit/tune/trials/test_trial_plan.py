from __future__ import annotations

import re

import pytest

from commprof.errors import UsageError
from commprof.tune.trials.candidates import Candidate, help_text, parse_candidate, technique_names
from commprof.tune.trials.plan import SETTINGS, SETTLE_STEPS, TrialSchedule, parse_trial


def labels(text: str) -> list[str]:
    return [one.label for one in parse_trial(text).candidates]


def test_commas_separate_candidates_and_options() -> None:
    text = "fp16,topk:ratio=0.01,feedback=0,bucket-cap=5,no-overlap,int8+bucket-cap=2.5"
    assert labels(text) == [
        *("fp16", "topk:ratio=0.01,feedback=0", "bucket-cap=5", "no-overlap"),
        "int8+bucket-cap=2.5",
    ]


def test_a_bucket_cap_keeps_all_its_digits() -> None:
    text = "bucket-cap=24.99999999+first-bucket=1234.5678"
    (one,) = parse_trial(text).candidates
    assert one.label == text
    assert "bucket_cap_mb_list=[1234.5678, 24.99999999]" in one.buckets.code
    assert labels("bucket-cap=5.0,bucket-cap=1e1") == ["bucket-cap=5", "bucket-cap=10"]


def test_an_option_may_have_a_technique_s_name() -> None:
    assert labels("int8:feedback=1,hierarchical=1,hierarchical") == [
        *("int8:feedback=1,hierarchical=1", "hierarchical")
    ]
    text = "int8,hierarchical,no-overlap,int8:hierarchical=1,int8:hierarchical=0,bucket-cap=5"
    assert [one.link_only for one in parse_trial(text).candidates] == [
        *(True, False, True, False, True, True)
    ]


def test_listed_controls_and_duplicate_candidates_are_removed() -> None:
    assert labels("none,noop,fp16,fp16") == ["fp16"]
    assert [one.label for one in parse_trial("none").everyone] == ["none", "none again", "noop"]
    assert [one.label for one in parse_trial("fp16,headroom=0").everyone] == [
        *("none", "none again", "fp16")
    ]


def test_settings_of_the_trial_are_parsed() -> None:
    plan = parse_trial("topk,rounds=4,block=10,warmup=3,shuffle=9")
    assert (plan.rounds, plan.block, plan.warmup, plan.shuffle) == (4, 10, 3, 9)
    assert plan.steps == SETTLE_STEPS + 4 * 4 * 13


@pytest.mark.parametrize(
    "text",
    [
        *("none", "topk:ratio=0.1+bucket-cap=1,int4", "bf16,headroom=0"),
        "int8+first-bucket=1,bucket-cap=5+first-bucket=1+gradient-as-bucket-view=true",
        "reshard-after-forward=false+prefetch=2+reduce-dtype=bf16,reshard-after-forward=true",
    ],
)
def test_a_plan_s_text_is_parsed_to_the_same_plan(text: str) -> None:
    plan = parse_trial(text)
    assert parse_trial(plan.text) == plan


def test_candidates_that_cannot_take_part_are_removed_from_the_plan() -> None:
    plan = parse_trial("fp16,bucket-cap=5,rounds=5").without({"bucket-cap=5"})
    assert [one.label for one in plan.candidates] == ["fp16"]
    assert plan.rounds == 5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no candidate"),
        ("rounds=4", "names no candidate"),
        ("fp16,noop,headroom=0", "noop and headroom=0 exclude each other"),
        ("zip", "unknown technique 'zip' (allowed: fp16"),
        ("fp16+int8", "'fp16+int8' names two compressors or hooks"),
        ("no-overlap+fp16", "names two compressors or hooks"),
        ("bucket-cap=1+bucket-cap=2", "names two bucket caps"),
        ("bucket-cap=0", "bucket-cap='0' is out of range (allowed: MiB from 0.001 to 10000)"),
        ("bucket-cap=x", "bucket-cap='x' is out of range"),
        ("first-bucket=0", "first-bucket='0' is out of range (allowed: MiB from 0.001 to 10000)"),
        ("gradient-as-bucket-view=1", "unknown gradient-as-bucket-view '1' (allowed: true, false)"),
        (
            "reshard-after-forward=maybe",
            "unknown reshard-after-forward 'maybe' (allowed: true, false)",
        ),
        ("prefetch=0", "prefetch='0' is out of range (allowed: a whole number from 1 to 64)"),
        ("reduce-dtype=fp8", "unknown reduce-dtype 'fp8' (allowed: bf16, fp16, fp32)"),
        ("prefetch=1+prefetch=2", "names prefetch twice"),
        ("scatter-group=shared", "unknown scatter-group 'shared' (allowed: own)"),
        ("scatter-group=own+scatter-group=own", "names scatter-group twice"),
        ("prefetch=1+int8", "joins settings of FSDP2 and of DDP"),
        ("shard-ranks=2", "`commprof predict RUN --shard-ranks N` predicts"),
        ("wrap-blocks=2", "`commprof predict RUN --wrap-blocks N` predicts"),
        ("static-graph", "static-graph cannot change between steps: DDP learns a static graph"),
        ("fp16,rounds=4,rounds=8", "trial: option 'rounds' is given twice; keep one of them"),
        ("topk:ratio=0.1,ratio=0.2", "topk: option 'ratio' is given twice"),
        ("fp16,rounds=2", "rounds=2 is out of range (allowed: a whole number from 3 to 64)"),
        ("fp16,block=1.5", "block=1.5 is out of range"),
    ],
)
def test_invalid_trials_are_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(complaint)):
        parse_trial(text)


@pytest.mark.parametrize(
    ("text", "two_ranks", "three_ranks"),
    [
        ("none", True, True),
        ("no-overlap", True, True),
        ("bucket-cap=5", True, False),
        ("fp16", False, False),
        ("no-overlap+bucket-cap=5", True, False),
        ("reshard-after-forward=false+prefetch=2", True, True),
        ("first-bucket=1", True, False),
        ("gradient-as-bucket-view=true", True, True),
        ("prefetch=1+reduce-dtype=bf16", False, False),
        ("prefetch=1+scatter-group=own", True, True),
    ],
)
def test_which_candidates_keep_gradients_exact_with_two_and_three_ranks(
    text: str, two_ranks: bool, three_ranks: bool
) -> None:
    candidate = Candidate("none") if text == "none" else parse_candidate(text)
    assert (candidate.exact(2), candidate.exact(3)) == (two_ranks, three_ranks)


def test_noop_does_not_keep_gradients_exact() -> None:
    assert not Candidate("noop").exact(2)


def test_techniques_of_a_candidate_are_counted() -> None:
    assert parse_candidate("fp16").techniques == 1
    assert parse_candidate("fp16+bucket-cap=5").techniques == 2
    assert parse_candidate("prefetch=1+reduce-dtype=bf16").techniques == 2


def test_help_lists_techniques_that_are_no_compressors() -> None:
    assert "no-overlap" in help_text()
    assert "bucket-cap=MB" in help_text()
    assert "none" not in technique_names()
    assert set(SETTINGS) == {"rounds", "block", "warmup", "shuffle", "headroom"}


def test_every_candidate_has_one_block_in_each_round() -> None:
    schedule = TrialSchedule(candidates=5, rounds=20, block_steps=6, warmup_steps=2, seed=0)
    assert schedule.steps == 20 * 5 * 8
    assert schedule.blocks[-1].end == schedule.steps
    for turn in range(20):
        blocks = schedule.blocks[5 * turn : 5 * turn + 5]
        assert sorted(block.candidate for block in blocks) == [0, 1, 2, 3, 4]
        assert {block.round for block in blocks} == {turn}
    for before, after in zip(schedule.blocks, schedule.blocks[1:], strict=False):
        assert before.end == after.begin
        assert after.measured == after.begin + 2


def test_the_order_of_candidates_is_shuffled_and_reproducible_from_the_seed() -> None:
    orders = {
        seed: [block.candidate for block in TrialSchedule(4, 8, 1, 2, seed).blocks]
        for seed in (0, 1)
    }
    assert orders[0] != orders[1]
    assert len({tuple(orders[0][i : i + 4]) for i in range(0, 32, 4)}) > 3
    # Another process or version of Python must draw the same order.
    assert orders[0][:8] == ORDER_OF_SEED_0


ORDER_OF_SEED_0 = [3, 0, 1, 2, 3, 0, 1, 2]


def test_blocks_are_found_at_their_first_step_only() -> None:
    schedule = TrialSchedule(2, 3, 4, 2, 0)
    assert schedule.block_at(0) == schedule.blocks[0]
    assert schedule.block_at(1) is None
    assert schedule.block_at(6) == schedule.blocks[1]
    assert schedule.block_at(36) is None
    assert schedule.block_at(-6) is None
