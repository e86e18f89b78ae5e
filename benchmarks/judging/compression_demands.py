"""Demands on the figures of ``compression.py``, by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.judging.demands import Demand, at_least, at_most, of_all
from benchmarks.judging.medians import median_interval, ratio_interval, ratio_of

Figures = dict[str, Any]

SIXTEEN_BIT = ("fp16", "bf16")
PLAIN, TORCH = "plain", "torch fp16"
TOP_K = "topk:ratio=0.01"
#: Least gain of each compressor, by link and bucket size. A gain is the exchange time of plain DDP
#: or of torch's fp16 hook, divided by the exchange time with the compressor.
GAINS: dict[str, dict[str, dict[str, float]]] = {
    "1gbit 25 MB": {PLAIN: {**dict.fromkeys(SIXTEEN_BIT, 1.9), "int8": 3.6, TOP_K: 20}},
    "10gbit 25 MB": {
        PLAIN: {**dict.fromkeys(SIXTEEN_BIT, 1.6), "int8": 1.8},
        TORCH: dict.fromkeys(SIXTEEN_BIT, 1.2),
    },
    "loopback 100 MB": {TORCH: dict.fromkeys(SIXTEEN_BIT, 1.7), PLAIN: {TOP_K: 3}},
}
#: Allowed relative difference between counted and reported bytes. Loopback is not judged, because
#: it counts the bytes of both ranks.
SAME_BYTES = 0.02
MOST_BYTES_PER_ENTRY = 4.1
LEAST_SUM = 8.0
LEAST_POWERSGD, POWERSGD_MB, POWERSGD_RANKS = 3.0, (4, 25, 100), (2, 4)
MOST_FP16_ERROR, MOST_INT8_ERROR = 0.6, 1e-2
AS_GOOD_AS_PLAIN = ("fp16", "bf16", "int8")
KERNEL_POINTS = 14


def kernels(figures: Figures) -> list[Demand]:
    """Checks the demands on the ratios of kernel times."""
    found = []
    for what, row in figures.items():
        if not row["demand"]:
            continue
        limit, _, side = row["demand"].split()
        ours, other = what.split(" : ")
        judge, turned = at_most, f"{ours} / {other}"
        if side == "least":
            judge, turned = at_least, f"{other} / {ours}"
        quartiles = (row["low"], row["high"])
        found.append(
            judge(f"kernel: {turned} (quartiles)", row["ratio"], float(limit), "x", quartiles)
        )
    return [*found, of_all("points measured", len(found), len(found), KERNEL_POINTS)]


def exchange(figures: Figures) -> list[Demand]:
    """Checks the demands on the gains and the bytes of exchanges."""
    found = []
    for where, asked in GAINS.items():
        for other, limits in asked.items() if where in figures else ():
            for name, limit in limits.items():
                value, between = gain(figures[where], other, name)
                what = f"bucket, {where}, 2 ranks: time of {other} / {name}"
                found.append(at_least(what, value, limit, "x", between))
    for where, times in figures.items():
        if not where.startswith("loopback"):
            found += wire_bytes(where, times)
    missing = [where for where in GAINS if where not in figures]
    return [*found, of_all("links measured", len(GAINS) - len(missing), len(GAINS), len(GAINS))]


def gain(times: Figures, other: str, name: str) -> tuple[float, tuple[float, float]]:
    """Returns the ratio of the median times of two hooks, and the interval of the ratio.

    From each time, the time of the same round's step without an exchange is subtracted. The result
    may be negative, so the gain is a ratio of medians, not a median of ratios.
    """
    without = np.array(times["nothing"]["ms"])
    above, below = (np.array(times[hook]["ms"]) - without for hook in (other, name))
    return ratio_of(np.median(above), np.median(below)), ratio_interval(above, below)


def wire_bytes(where: str, times: Figures) -> list[Demand]:
    """Checks that reported and counted bytes are equal, and that a top-K entry has few bytes."""
    found = []
    for name, one in times.items():
        if one["wire_bytes"]:
            counted = one["bytes"] / one["wire_bytes"] - 1
            what = f"bucket, {where}: {name}, bytes counted on the interface / reported - 1"
            figure = f"{counted:+.2%}"
            asked = f"within {SAME_BYTES:.0%}"
            found.append(Demand(what, figure, asked, abs(counted) <= SAME_BYTES))
    size_mb = float(where.split()[1])
    entries = 0.01 * (int(size_mb * 1e6 / 4) // 1024 * 1024)
    per_entry = times[TOP_K]["wire_bytes"] / entries
    what = f"bucket, {where}: {TOP_K}, bytes per entry"
    return [*found, at_most(what, per_entry, MOST_BYTES_PER_ENTRY, form=".3f")]


def sums(figures: Figures) -> list[Demand]:
    """Checks the demand on sums of fp16 values: gloo's time divided by commprof's time.

    gloo's time is the difference between an fp16 and a uint8 all-reduce of equally many bytes.
    """
    gloo = np.array(figures["fp16_ms"]) - np.array(figures["uint8_ms"])
    gloo_ns = gloo / figures["elements_summed"]
    ours_ns = np.array(figures["ours_ms"]) / figures["ours_elements"]
    value = ratio_of(np.median(gloo_ns), np.median(ours_ns))
    between = ratio_interval(gloo_ns, ours_ns)
    what = "16-bit sum, time per element: gloo / ours"
    return [at_least(what, value, LEAST_SUM, "x", between)]


def powersgd(figures: Figures) -> list[Demand]:
    """Checks the demands on the time that PowerSGD adds to a step, compared with torch's hook."""
    found = []
    for name, times in figures.items():
        size, rank = name.split()
        ratios = np.array(times["torch"]) / np.array(times["ours"])
        what = f"PowerSGD of rank {rank}, {float(size):g} MB: time of torch's hook / ours"
        between = median_interval(ratios)
        found.append(at_least(what, float(np.median(ratios)), LEAST_POWERSGD, "x", between))
    wanted = [f"{float(size)} {rank}" for size in POWERSGD_MB for rank in POWERSGD_RANKS]
    measured = sum(name in figures for name in wanted)
    return [*found, of_all("points measured", measured, len(wanted), len(wanted))]


def accuracy(figures: Figures) -> list[Demand]:
    """Checks the demands on relative errors, and checks that all ranks have equal bits."""
    errors = figures["errors"]
    share = errors["fp16"] / errors[TORCH]
    what = "relative L2 error, 8 ranks' real gradients: "
    same = "yes" if figures["identical"] else "no"
    return [
        at_most(f"{what}fp16 / torch's fp16 hook", share, MOST_FP16_ERROR, "x", form=".3f"),
        at_most(f"{what}int8", errors["int8"], MOST_INT8_ERROR, form=".2e"),
        Demand("buckets equal on all ranks, bit for bit", same, "yes", figures["identical"]),
    ]


def training(figures: Figures) -> list[Demand]:
    """Checks the demands on the mean loss of the last 20 steps, compared with plain DDP's."""
    ends = {name: np.array(of_seeds) for name, of_seeds in figures.items()}
    noise = float(ends[PLAIN].std(ddof=1))
    found = []
    for name in AS_GOOD_AS_PLAIN:
        worst = float(np.abs(ends[name] - ends[PLAIN]).max())
        what = f"transformer, {name}: largest difference from plain DDP's loss, of 3 seeds"
        asked = f"within the standard deviation of plain DDP's loss over the seeds, {noise:.2g}"
        found.append(Demand(what, f"{worst:.2g}", asked, worst <= noise))
    lossy = {name: ends[name] for name in (TOP_K, "powersgd")}
    shown = ", ".join(f"{name} {end.mean():.4f}" for name, end in lossy.items())
    plain = f"plain {ends[PLAIN].mean():.4f}"
    return [*found, Demand("mean loss of lossier schemes", f"{shown}; {plain}", "shown", True)]


DEMANDS: dict[str, Callable[[Figures], list[Demand]]] = {
    "kernels": kernels,
    "exchange": exchange,
    "sum": sums,
    "powersgd": powersgd,
    "accuracy": accuracy,
    "training": training,
}
