from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.collectives.compression import CompressionRow
from commprof.forecast.costs.cost_model import CostCurve
from commprof.forecast.costs.hook_costs import HookCost, HookFigures
from commprof.forecast.costs.machine_profile import load_profile, save_profile
from commprof.forecast.fit.hook_fit import fit_hook
from commprof.forecast.replay.exchange import exchange
from commprof.forecast.report import profile_table
from commprof.forecast.scenario.schedule import Schedule
from tests.support.builders.results import compression
from tests.support.builders.schedules import MB, curve, hook, profile, schedule

OVERHEAD_S = 1.5e-3
SIZES = tuple(MB // 2 + number * MB // 4 for number in range(12))


def rows(noise: float, seed: int = 0) -> list[CompressionRow]:
    random = np.random.default_rng(seed)

    def about(time_ms: float) -> float:
        return time_ms * float(random.normal(1, noise)) if noise else time_ms

    return [
        compression(
            scheme="fp16",
            gradient_bytes=size,
            encode_ms=about(size / MB),
            reduce_ms=about(size / MB / 2),
            decode_ms=about(size / MB / 2),
            payload_bytes=size / 2,
        )
        for size in SIZES
    ]


def recorded(noise_s: float, seed: int = 0, steps: int = 30) -> Schedule:
    known = hook(overhead_s=OVERHEAD_S)
    ready_ms = tuple(100.0 * number for number in range(1, len(SIZES) + 1))
    made = schedule(ready_ms, SIZES, 1300, steps=steps, hook="fp16")
    alone = np.array([known.time_s(size, 2, curve()) for size in SIZES])
    end = exchange(made.ready_s.max(axis=1), alone, np.zeros(len(SIZES)), workers=1)
    noise = np.random.default_rng(seed).normal(0, noise_s, end.shape) if noise_s else 0.0
    return dataclasses.replace(made, end_s=end + noise, period_s=np.full(steps, 1.4))


def fitted(noise: float, seed: int = 0, link: CostCurve | None = None) -> HookCost:
    return fit_hook("fp16", rows(noise, seed), [recorded(noise / 100, seed)], link or curve())


def test_exact_bucket_times_give_narrow_intervals_and_no_residual() -> None:
    found = fitted(noise=0.0)
    assert found.low is not None
    assert found.high is not None
    assert found.high.encode[1] - found.low.encode[1] < 1e-3 * found.encode[1]
    assert found.work_residual < 1e-6
    assert found.residual < 1e-3


def test_noise_of_bucket_times_determines_intervals_and_residuals() -> None:
    inside = 0
    for seed in range(6):
        found = fitted(0.1, seed)
        assert found.low is not None
        assert found.high is not None
        for name in ("encode", "reduce", "decode"):
            low, high = getattr(found.low, name)[1], getattr(found.high, name)[1]
            assert low < high
            inside += low <= getattr(hook(), name)[1] <= high
        assert found.low.overhead_s <= OVERHEAD_S * 1.2
        assert found.high.overhead_s >= OVERHEAD_S / 1.2
        # The parts 1, 0.5 and 0.5 vary by 10 % each, so their sum varies by 10 % x sqrt(1.5) / 2.
        assert found.work_residual == pytest.approx(0.06, abs=0.04)
    assert inside >= 13  # Resampling 12 buckets misses the truth in more than 5 % of 18 cases.
    # The ends vary by 1 ms, so their mean absolute difference is 0.8 ms in a step of 1.4 s.
    assert found.residual == pytest.approx(0.0008 / 1.4, rel=0.3)


def test_a_replicate_has_its_own_figures() -> None:
    found = fitted(0.1)
    one, other = found.replicate(0), found.replicate(1)
    assert one.encode != other.encode
    again = found.replicate(len(found.replicates))
    assert dataclasses.astuple(again) == dataclasses.astuple(one)
    assert (one.payload_ratio, one.label) == (found.payload_ratio, found.label)
    assert one.time_s(MB, 2, curve()) != other.time_s(MB, 2, curve())


def test_a_slower_link_s_replicate_has_the_smaller_overhead() -> None:
    link = curve(replicates=(((0.0, 0.9e-8),), ((0.0, 1.1e-8),)))
    found = fitted(0.01, link=link)
    fast, slow = found.replicate(0), found.replicate(1)
    assert fast.overhead_s > found.overhead_s > slow.overhead_s


def test_with_few_buckets_intervals_of_coding_times_are_unknown() -> None:
    made = recorded(0.0)
    found = fit_hook("fp16", rows(0.1)[:2], [made], curve())
    assert found.low is not None
    assert math.isnan(found.low.encode[1])
    assert not math.isnan(found.low.overhead_s)
    assert {drawn.encode for drawn in found.replicates} == {found.encode}


def test_the_profile_keeps_intervals_and_replicates_of_hook_costs(tmp_path: Path) -> None:
    found = fitted(0.1)
    path = tmp_path / "profile.json"
    save_profile(profile(hooks=(found,)), path)
    loaded = load_profile(path).hooks["fp16"]
    assert dataclasses.astuple(loaded) == dataclasses.astuple(found)
    kept = json.loads(path.read_text())["hooks"]["fp16"]
    assert len(kept["replicates"]) == len(found.replicates) >= 20
    assert kept["low"]["encode"][1] < kept["encode"][1] < kept["high"]["encode"][1]
    assert kept["work_residual"] == found.work_residual > 0


def test_the_profile_table_shows_intervals_of_hook_costs() -> None:
    found = dataclasses.replace(
        hook(overhead_s=1e-3),
        low=dataclasses.replace(fitted_figures(), encode=(0.0, 0.8e-9), overhead_s=0.5e-3),
        high=dataclasses.replace(fitted_figures(), encode=(0.0, 1.3e-9), overhead_s=2e-3),
        residual=0.02,
        work_residual=0.05,
    )
    text = profile_table.render(profile(hooks=(found,)), 100)
    assert "1 [0.8, 1.3]" in text
    assert "1 [0.5, 2]" in text
    assert ["5.0%", "2.0%"] in [line.split()[-2:] for line in text.splitlines()]
    plain = profile_table.render(profile(hooks=(hook(),), residual=0.01), 100)
    assert "nan" not in plain


def fitted_figures() -> HookFigures:
    known = hook()
    return HookFigures(known.encode, known.reduce, known.decode, 0.0)


def test_gamma_s_interval_is_kept_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    made = profile(gamma_s_per_byte=0.4e-9, gamma_interval_s_per_byte=(0.3e-9, 0.5e-9))
    save_profile(made, path)
    again = load_profile(path).links["other_host"].curves["all_reduce"]
    assert again.gamma_interval_s_per_byte == (0.3e-9, 0.5e-9)
    assert "0.4 [0.3, 0.5]" in profile_table.render(made, 100)
    document = json.loads(path.read_text())
    del document["links"]["other_host"]["curves"]["all_reduce"]["gamma_interval_s_per_byte"]
    path.write_text(json.dumps(document))
    older = load_profile(path).links["other_host"].curves["all_reduce"]
    assert math.isnan(older.gamma_interval_s_per_byte[0])
