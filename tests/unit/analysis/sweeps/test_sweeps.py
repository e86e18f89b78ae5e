from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.sweeps.sweep import (
    OverlapRow,
    SweepResult,
    SweepRow,
    Times,
    durations_us,
    make_row,
    overlap_share,
    skews_us,
)
from commprof.analysis.sweeps.sweep_comparison import compare_sweeps, drift, round_medians
from commprof.analysis.sweeps.sweep_file import (
    KIND,
    SCHEMA_VERSION,
    read_sweep,
    write_sweep,
)
from commprof.analysis.sweeps.sweep_file import (
    render as as_json,
)
from commprof.commands import main
from commprof.commands.compare import parse_share
from commprof.errors import UsageError
from commprof.report.comparison.sweep_table import render_compared
from commprof.stats.rank_tests import holm, rank_test
from tests.support.builders.sweeps import CONTEXT, key, row, sweep_result

US = 1000


def times(begin_us: list[int], end_us: list[int]) -> Times:
    return Times(np.array(begin_us) * US, np.array(end_us) * US)


def test_with_a_shared_clock_durations_begin_when_the_last_rank_begins() -> None:
    ranks = [times([0, 100], [50, 130]), times([40, 105], [52, 128])]
    assert durations_us(ranks, one_clock=True).tolist() == [12, 25]
    assert skews_us(ranks).tolist() == [40, 5]


def test_without_a_shared_clock_durations_are_those_of_the_slowest_rank() -> None:
    ranks = [times([0, 100], [50, 130]), times([1040, 1105], [1052, 1128])]
    assert durations_us(ranks, one_clock=False).tolist() == [50, 30]


def test_a_sweep_row_has_the_statistics_and_bandwidths_of_its_samples() -> None:
    rounds = [np.array([100.0, 300.0]), np.array([200.0])]
    given = key(world_size=4, size_bytes=1_000_000, count=250_000)
    found = make_row(given, "all_reduce", rounds, [np.array([1.0, 3.0, 2.0])], wrong=0, root=-1)
    assert (found.time_us, found.min_us, found.max_us, found.p50_us) == (200, 100, 300, 200)
    assert found.p99_us == pytest.approx(298)
    assert found.cv == pytest.approx(math.sqrt(2 / 3) / 2)
    # An all-reduce of 4 ranks moves 2 * 3 / 4 of its size over each link.
    assert found.algbw_gb_per_s == pytest.approx(5)
    assert found.busbw_gb_per_s == pytest.approx(7.5)
    assert (found.iterations, found.round_iterations) == (3, (2, 1))
    assert found.skew_us == 2


def test_a_barrier_has_no_bandwidth_or_skew() -> None:
    given = key(op="barrier", dtype="", redop="", size_bytes=0, count=0)
    found = make_row(given, "barrier", [np.array([5.0])], [], wrong=None, root=-1)
    assert math.isnan(found.algbw_gb_per_s)
    assert math.isnan(found.busbw_gb_per_s)
    assert math.isnan(found.skew_us)


@pytest.mark.parametrize(
    ("pure", "compute", "overlapped", "share"),
    [(100, 100, 200, 0), (100, 100, 100, 1), (100, 100, 150, 0.5), (100, 50, 125, 0.5)],
)
def test_overlap_share_follows_the_definition_of_imb(
    pure: float, compute: float, overlapped: float, share: float
) -> None:
    assert overlap_share(pure, compute, overlapped) == pytest.approx(share)


def test_overlap_share_is_limited_to_the_range_from_0_to_1() -> None:
    assert overlap_share(100, 100, 250) == 0
    assert overlap_share(100, 100, 90) == 1


def test_a_sweep_result_is_unchanged_after_writing_and_reading(tmp_path: Path) -> None:
    overlap = OverlapRow(key(), 1.0, 2.0, 3.0, 4.0, 0.5, 20)
    barrier = row(
        key=key(op="barrier", dtype="", redop="", size_bytes=0, count=0),
        algbw_gb_per_s=math.nan,
        busbw_gb_per_s=math.nan,
        wrong=None,
    )
    result = sweep_result(row(), barrier, overlap_rows=(overlap,), problems=("rank 1 failed",))
    path = tmp_path / "result.json"
    write_sweep(path, result)
    assert as_json(read_sweep(path)) == as_json(result) == path.read_text()
    assert read_sweep(path).rows[0] == result.rows[0]
    assert math.isnan(read_sweep(path).rows[1].busbw_gb_per_s)
    assert read_sweep(path).overlap_rows == (overlap,)
    assert list(tmp_path.iterdir()) == [path]


def test_a_sweep_file_has_its_kind_and_version_and_column_names_with_units(tmp_path: Path) -> None:
    value = json.loads(as_json(sweep_result(row())))
    assert (value["schema_version"], value["kind"]) == (SCHEMA_VERSION, KIND) == (1, KIND)
    assert list(value) == [
        *("schema_version", "kind", "context", "problems", "rows", "overlap_rows")
    ]
    assert list(value["rows"][0]) == [
        *("op", "dtype", "redop", "world_size", "backend", "placement", "size_bytes", "count"),
        *("root", "time_us", "min_us", "p50_us", "p99_us", "max_us", "cv"),
        *("algbw_gb_per_s", "busbw_gb_per_s", "wrong", "iterations", "skew_us"),
        *("samples_us", "round_iterations"),
    ]


def test_an_empty_sweep_result_can_be_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_sweep(path, SweepResult({}))
    assert read_sweep(path) == SweepResult({})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a JSON file: "),
        ("[]", "is not a microbenchmark result"),
        ('{"schema_version": 1, "runs": []}', "is not a microbenchmark result"),
        ('{"kind": "commprof microbench", "schema_version": 9}', "schema_version 9 .allowed: 1"),
        ('{"kind": "commprof microbench", "schema_version": 1}', "is damaged: context is missing"),
    ],
)
def test_files_that_are_no_sweep_results_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_sweep(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_sweep(tmp_path / "missing.json")


def test_unknown_fields_of_a_newer_sweep_file_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = json.loads(as_json(sweep_result(row())))
    value["rows"][0]["colour"] = "red"
    path.write_text(json.dumps(value))
    assert read_sweep(path).rows == (replace(row()),)


ROUNDS = 10
PER_ROUND = 5


def noisy_row(random: np.random.Generator, size_bytes: int, factor: float = 1.0) -> SweepRow:
    level = 100 * factor * random.lognormal(0, 0.05, size=(ROUNDS, 1))
    samples = (level * random.lognormal(0, 0.03, size=(ROUNDS, PER_ROUND))).flatten()
    return row(
        key=key(size_bytes=size_bytes),
        time_us=float(np.median(samples)),
        samples_us=tuple(samples.tolist()),
        round_iterations=(PER_ROUND,) * ROUNDS,
    )


def noisy_result(seed: int, sizes: int, slow: dict[int, float] | None = None) -> SweepResult:
    random = np.random.default_rng(seed)
    factors = slow or {}
    return sweep_result(
        *(noisy_row(random, 8 << i, factors.get(i, 1.0)) for i in range(sizes)),
    )


def test_sweeps_are_compared_by_the_medians_of_their_rounds() -> None:
    one = row(samples_us=(1.0, 3.0, 10.0, 30.0, 20.0), round_iterations=(2, 3))
    assert round_medians(one) == [2, 20]


def test_only_the_size_that_is_slower_is_reported() -> None:
    comparison = compare_sweeps(noisy_result(1, 20), noisy_result(2, 20, {7: 1.5}))
    verdicts = [one.verdict for one in comparison.rows]
    assert verdicts == ["same"] * 7 + ["slower"] + ["same"] * 12
    assert comparison.rows[7].ratio == pytest.approx(1.5, rel=0.1)
    assert [one.key.size_bytes for one in comparison.slower_than(0.05)] == [8 << 7]
    assert comparison.slower_than(0.9) == ()
    turned = compare_sweeps(noisy_result(2, 20, {7: 1.5}), noisy_result(1, 20))
    assert turned.rows[7].verdict == "faster"
    assert turned.slower_than(0.0) == ()


@pytest.mark.slow
def test_equal_sweeps_rarely_show_a_difference() -> None:
    pairs = 100
    flagged = 0
    for pair in range(pairs):
        a, b = noisy_result(2 * pair, 25), noisy_result(2 * pair + 1, 25)
        flagged += any(one.verdict != "same" for one in compare_sweeps(a, b).rows)
    # If 1 % of all pairs differ by chance, 5 or more of 100 differ with a probability of 0.3 %.
    assert flagged < 5


def drifting_pair(random: np.random.Generator, sizes: int) -> tuple[SweepResult, SweepResult]:
    speed = np.exp(np.cumsum(random.normal(0, 0.03, size=2 * ROUNDS)))
    results = []
    for part in (speed[:ROUNDS], speed[ROUNDS:]):
        samples = part * 100 * random.lognormal(0, 0.02, size=(sizes, ROUNDS))
        results.append(
            sweep_result(
                *(
                    row(
                        key=key(size_bytes=8 << i),
                        time_us=float(np.median(one)),
                        samples_us=tuple(one.tolist()),
                        round_iterations=(1,) * ROUNDS,
                    )
                    for i, one in enumerate(samples)
                )
            )
        )
    return results[0], results[1]


def test_drift_of_a_machine_is_rarely_reported_as_a_difference() -> None:
    random = np.random.default_rng(5)
    pairs = [drifting_pair(random, 16) for _ in range(40)]
    comparisons = [compare_sweeps(*pair) for pair in pairs]
    assert np.mean([one.correlation for one in comparisons]) > 0.3
    flagged = sum(any(found.verdict != "same" for found in one.rows) for one in comparisons)
    blind = sum(
        min(holm([rank_test(round_medians(x), round_medians(y)) for x, y in rows])) < 0.01
        for rows in (list(zip(a.rows, b.rows, strict=True)) for a, b in pairs)
    )
    # The rank test alone finds differences in many of these pairs.
    assert blind > 15
    assert flagged <= blind / 5


def test_drift_of_independent_rounds_is_zero_on_average() -> None:
    random = np.random.default_rng(6)
    found = [drift(random.lognormal(size=(40, ROUNDS)).tolist()) for _ in range(50)]
    assert abs(np.mean(found)) < 0.03
    steady = np.cumsum(np.ones(200)).tolist()
    assert drift([steady]) > 0.9
    assert drift([[1.0, 1.0, 1.0], [1.0, 2.0], [51.0] * 10]) == 0


def test_rows_of_one_sweep_only_are_counted_and_different_settings_are_listed() -> None:
    first = sweep_result(row(), row(key=key(size_bytes=8)))
    second = sweep_result(
        row(), context={**CONTEXT, "torch": "2.14.0", "machine": {"hostname": "there"}}
    )
    comparison = compare_sweeps(first, second)
    assert (len(comparison.rows), comparison.only_first, comparison.only_second) == (1, 1, 0)
    assert ("torch", "2.13.0", "2.14.0") in comparison.differences
    assert ("hostname", "here", "there") in comparison.differences
    text = render_compared(comparison)
    assert "  torch: 2.13.0 against 2.14.0\n" in text
    assert "Only in A: 1 row." in text


def test_comparing_sweeps_without_a_common_row_is_refused() -> None:
    with pytest.raises(UsageError, match="no row in common"):
        compare_sweeps(sweep_result(row()), sweep_result(row(key=key(world_size=4))))


def test_comparing_overlap_results_is_refused() -> None:
    overlapped = sweep_result(overlap_rows=(OverlapRow(key(), 1.0, 1.0, 1.0, 1.0, 1.0, 5),))
    for pair in ((overlapped, overlapped), (sweep_result(row()), overlapped)):
        with pytest.raises(UsageError, match="measure both without --overlap"):
            compare_sweeps(*pair)


def test_a_remark_says_that_there_are_too_few_rounds() -> None:
    (remark,) = compare_sweeps(sweep_result(row()), sweep_result(row())).remarks
    assert remark.startswith("With 2 rounds and 1 row, no difference can be significant at 1%")
    assert compare_sweeps(noisy_result(1, 20), noisy_result(2, 20)).remarks == ()


def test_a_row_with_few_rounds_does_not_prevent_judging_the_others() -> None:
    results = [
        sweep_result(*noisy_result(seed, 3, {0: factor}).rows, row())
        for seed, factor in ((1, 1), (2, 9))
    ]
    found = compare_sweeps(*results)
    assert found.can_tell
    assert found.remarks == ()
    assert [one.verdict for one in found.rows] == ["slower", "same", "same", "same"]


def test_a_remark_says_that_drift_prevents_a_conclusion() -> None:
    first, second = (
        sweep_result(row(samples_us=tuple(at + r for r in range(10)), round_iterations=(1,) * 10))
        for at in (100.0, 200.0)
    )
    found = compare_sweeps(first, second)
    assert found.rows[0].verdict == "same"
    (remark,) = found.remarks
    assert remark.startswith(
        f"With 10 rounds, whose successive values correlate by {found.correlation:.2f}, and 1 row, "
        "no difference can be significant at 1%"
    )
    assert remark.endswith(", or measure again while the machine's speed drifts less")


GOLDEN = """\
operation   ranks  placement  type       size   A   B    B/A      p  corrected  verdict
                                            B  us  us                        p
----------  -----  ---------  ---------  ----  --  --  -----  -----  ---------  -------
all_reduce      2  in-place   float sum  1024  50  60  1.200  1.000      1.000  same

A, B: median times. p: Mann-Whitney rank test between the rounds' medians, allowing for the
correlation of successive rounds (0.00); corrected by Holm's method for 1 row. If A
and B are equal, the chance that any row is called slower or faster is at most 1%.

* With 2 rounds and 1 row, no difference can be significant at 1%; measure fewer sizes or more
  rounds (-n limits the number of rounds).

B against A: 0 slower, 0 faster, 1 same.
"""


def test_the_sweep_comparison_table_is_unchanged() -> None:
    assert (
        render_compared(compare_sweeps(sweep_result(row()), sweep_result(row(time_us=60.0))))
        == GOLDEN
    )


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("2.5%", 0.025)])
def test_shares_are_parsed_as_percent_or_fraction(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


def compare(tmp_path: Path, second: SweepResult, *options: str) -> int:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, result in zip(paths, (noisy_result(1, 20), second), strict=True):
        write_sweep(path, result)
    return main(["compare", *map(str, paths), *options])


def test_compare_exits_with_1_if_a_row_is_slower_than_fail_above_allows(
    tmp_path: Path, capsys: Any
) -> None:
    slower = noisy_result(2, 20, {3: 1.5})
    assert compare(tmp_path, slower) == 0
    assert compare(tmp_path, slower, "--fail-above", "60%") == 0
    assert compare(tmp_path, slower, "--fail-above", "5%") == 1
    assert "Beyond noise, 1 row is slower by more than 5%" in capsys.readouterr().out
    assert compare(tmp_path, noisy_result(2, 20), "--fail-above", "5%") == 0


def test_compare_fails_if_b_lacks_rows_was_cut_short_or_had_wrong_data(
    tmp_path: Path, capsys: Any
) -> None:
    whole = noisy_result(2, 20)
    wrong = replace(whole.rows[3], wrong=7)
    for second, reason in (
        (replace(whole, rows=whole.rows[:-2]), "it lacks 2 rows of A."),
        (replace(whole, problems=("rank 1 failed",)), "its measurement was cut short: rank 1 fai"),
        (replace(whole, rows=(*whole.rows[:3], wrong, *whole.rows[4:])), "7 elements were wrong."),
    ):
        assert compare(tmp_path, second) == 0
        assert compare(tmp_path, second, "--fail-above", "60%") == 1
        assert f"B cannot pass: {reason}" in capsys.readouterr().out
    assert compare(tmp_path, whole, "--fail-above", "60%") == 0


def test_fail_above_is_refused_if_the_rounds_are_too_few_to_judge(
    tmp_path: Path, capsys: Any
) -> None:
    few = replace(noisy_result(1, 3), rows=tuple(map(two_rounds, noisy_result(1, 3).rows)))
    slow = replace(few, rows=tuple(map(two_rounds, noisy_result(2, 3, {1: 10.0}).rows)))
    paths = [tmp_path / "few.json", tmp_path / "slow.json"]
    for path, result in zip(paths, (few, slow), strict=True):
        write_sweep(path, result)
    words = ["compare", *map(str, paths)]
    assert main(words) == 0
    assert "* With 2 rounds and 3 rows, no difference can be" in capsys.readouterr().out
    assert main([*words, "--fail-above", "5%"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--fail-above cannot judge these results. With 2 rounds and 3 rows, no differ" in err
    assert err.endswith("measure fewer sizes or more rounds (-n limits the number of rounds)\n")
    write_sweep(paths[1], replace(slow, rows=(replace(slow.rows[0], wrong=7), *slow.rows[1:])))
    assert main([*words, "--fail-above", "5%"]) == 1
    assert "B cannot pass: 7 elements were wrong." in capsys.readouterr().out


def two_rounds(whole: SweepRow) -> SweepRow:
    return replace(whole, samples_us=whole.samples_us[:2], round_iterations=(1, 1))


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, capsys: Any) -> None:
    assert compare(tmp_path, noisy_result(2, 20), "--fail-above", "much") == 2
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_rows_with_different_placement_are_not_compared() -> None:
    first = sweep_result(row(), row(key=key(placement="out_of_place")))
    second = sweep_result(row(key=key(placement="out_of_place")))
    (only,) = compare_sweeps(first, replace(second)).rows
    assert only.key.placement == "out_of_place"
