from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from commprof.analysis.cost import Cost, Price, cost
from commprof.report.sections import cost as cost_table
from commprof.trace.reader import TORCH_PROFILER
from tests.support.analysed import analyse_world
from tests.support.builders.results import detail, world
from tests.support.builders.run_directories import ranks_of
from tests.support.builders.traces import world_run


def of(price: Price, *throughputs: float, **values: object) -> Cost:
    sizes = [2**i for i in range(len(throughputs))]
    worlds = [world(n, samples_per_s=x) for n, x in zip(sizes, throughputs, strict=True)]
    return cost(worlds, [detail(n, **values) for n in sizes], price)


def test_a_price_per_rank_is_multiplied_by_the_ranks() -> None:
    found = of(Price(3.6, "rank"), 100.0, 160.0)
    first, second = found.rows
    # 3.6 per hour is 0.001 per second.
    assert (first.billed, second.billed) == (1, 2)
    assert first.s_per_1000_samples == pytest.approx(10)
    assert first.cost_per_1000_samples.value == pytest.approx(0.01)
    assert second.cost_per_1000_samples.value == pytest.approx(0.0125)
    assert second.cost_efficiency == pytest.approx(0.8)
    assert (found.cheapest, found.fastest, found.as_cheap) == (1, 2, ())


def test_a_price_per_node_is_multiplied_by_the_machines() -> None:
    found = of(Price(3.6, "node"), 100.0, 160.0)
    assert [row.billed for row in found.rows] == [1, 1]
    assert found.rows[1].cost_per_1000_samples.value == pytest.approx(0.00625)
    assert (found.cheapest, found.fastest) == (2, 2)
    two = world(2, samples_per_s=160.0)
    apart = tuple(dataclasses.replace(r, machine=f"m{r.rank}") for r in two.ranks)
    paid = cost([dataclasses.replace(two, ranks=apart)], [detail(2)], Price(3.6, "node"))
    assert paid.rows[0].billed == 2


@pytest.mark.parametrize(
    ("boots", "names", "capture", "nodes"),
    [
        (("a", "a"), ("container1", "container2"), "native", 1),
        (("a", "b"), ("localhost", "localhost"), "native", 2),
        (("", ""), ("h1", "h2"), "native", 2),
        # torch.profiler records no boot id, so the field only marks which ranks share a clock.
        (("rank 0", "rank 1"), ("h1", "h1"), TORCH_PROFILER, 1),
    ],
)
def test_machines_are_identified_by_boot_id_or_hostname(
    boots: tuple[str, str], names: tuple[str, str], capture: str, nodes: int
) -> None:
    ranks = ranks_of(2, 12)
    for rank, boot, name in zip(ranks, boots, names, strict=True):
        rank.metadata["machine"].update(boot_id=boot, hostname=name)
        rank.metadata["capture"] = capture
    found = analyse_world(world_run(ranks))
    assert found is not None
    assert cost([found], [detail(2)], Price(3.6, "node")).rows[0].billed == nodes


def test_samples_per_epoch_come_from_the_run_or_the_option() -> None:
    known = of(Price(3.6, "rank"), 100.0, epoch_samples=5000)
    assert known.rows[0].s_per_epoch == pytest.approx(50)
    assert known.rows[0].cost_per_epoch == pytest.approx(0.05)
    assert math.isnan(of(Price(3.6, "rank"), 100.0).rows[0].s_per_epoch)
    given = cost([world(1)], [detail(1)], Price(3.6, "rank"), epoch_samples=1000)
    assert given.rows[0].s_per_epoch == pytest.approx(10)


def test_epoch_figures_are_unknown_if_epochs_have_different_numbers_of_samples() -> None:
    worlds = [world(n, samples_per_s=100.0 * n) for n in (1, 2)]
    for second, known in ((1020, True), (2000, False)):
        details = [detail(1, epoch_samples=1000), detail(2, epoch_samples=second)]
        rows = cost(worlds, details, Price(3.6, "rank")).rows
        # A sampler may pad 1000 samples to 1020, so these numbers count as equal.
        assert [row.s_per_epoch for row in rows] == (
            [10.0, 5.0] if known else pytest.approx([math.nan] * 2, nan_ok=True)
        )


def test_world_sizes_with_overlapping_cost_intervals_are_as_cheap() -> None:
    spread = np.linspace(50, 150, 20)
    assert of(Price(1, "rank"), 100.0, 199.0, step=spread).as_cheap == (2,)
    assert of(Price(1, "rank"), 100.0, 120.0, step=100.0).as_cheap == ()


def test_the_cost_is_unknown_without_samples_per_second() -> None:
    found = of(Price(1, "rank"), math.nan, math.nan)
    assert (found.cheapest, found.fastest) == (None, None)
    assert "The cost is not known" in cost_table.section(found)


def test_the_cost_efficiency_of_a_single_world_size_is_nan() -> None:
    (row,) = of(Price(3.6, "rank"), 100.0).rows
    assert math.isnan(row.cost_efficiency)


def test_the_cost_per_node_is_unknown_if_a_rank_is_missing() -> None:
    damaged = world(4, missing_ranks=(3,))
    (row,) = cost([damaged], [detail(4)], Price(3.6, "node")).rows
    assert row.billed is None
    assert math.isnan(row.cost_per_1000_samples.value)
    assert cost([damaged], [detail(4)], Price(3.6, "rank")).rows[0].billed == 4


def test_large_amounts_of_money_are_written_without_an_exponent() -> None:
    assert [cost_table.money(x) for x in (12_345.6, 1.23456)] == ["12346", "1.235"]


def test_the_cost_table_is_unchanged() -> None:
    text = cost_table.section(of(Price(3.6, "rank"), 100.0, 160.0, epoch_samples=5000))
    assert (
        text
        == """\
Cost at 3.6 per hour and rank:
ranks  ranks  s per 1000                 cost per        cost  epoch s  cost per
        paid     samples             1000 samples  efficiency              epoch
-----  -----  ----------  -----------------------  ----------  -------  --------
    1      1          10        0.01 [0.01, 0.01]      100.0%       50      0.05
    2      2        6.25  0.0125 [0.0125, 0.0125]       80.0%    31.25    0.0625

Time and money from the measured samples/s [95 % interval of the mean step]; money in the currency
of the price. cost efficiency: cost per sample of the first row divided by that of this row; above
100 % this row is cheaper.

Cheapest per sample: 1 rank. Fastest: 2 ranks."""
    )
