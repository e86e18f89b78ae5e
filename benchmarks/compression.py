"""Measures the cost and the gain of compression.

    PYTHONPATH=. python benchmarks/compression.py kernels
    PYTHONPATH=. python benchmarks/compression.py sum
    PYTHONPATH=. python benchmarks/compression.py exchange --rates 1gbit,10gbit,loopback
    PYTHONPATH=. python benchmarks/compression.py powersgd
    PYTHONPATH=. python benchmarks/compression.py accuracy
    PYTHONPATH=. python benchmarks/compression.py training

`exchange` runs on two hosts, which are network namespaces and need root. Each rank computes with
one thread. With --json FILE a part writes its figures to FILE; the figures of other parts stay in
FILE. The exit code is 1 if a demand of compression_demands.py is not met.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.judging.compression_demands import DEMANDS, gain
from benchmarks.judging.demands import judged
from benchmarks.judging.results_file import read_parts, write_part
from benchmarks.ranks.rank_launch import on_hosts, on_this_host

HERE = Path(__file__).parent
RANK_SCRIPT = HERE / "ranks" / "compression_rank.py"
#: Compressors that `training` compares with plain DDP.
TRAINED = ["plain", "fp16", "bf16", "int8", "int4", "topk:ratio=0.01", "topk:ratio=0.1", "powersgd"]
#: Hooks that `exchange` measures in turns. "nothing" exchanges nothing, "plain" is DDP without a
#: hook, "torch fp16" is torch's hook. "none" is commprof's hook without a compressor.
HOOKS = ["nothing", "plain", "torch fp16", "none", "fp16", "bf16", "int8", "topk:ratio=0.01"]


def main() -> int:
    """Runs one part, and prints the part's table and demands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--sizes", default="", help="sizes in MB, separated by commas")
    parser.add_argument(
        "--rates", default="1gbit,10gbit,loopback", help="rates of the link, in the notation of tc"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=200, help="steps of `training`")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each row of `kernels`")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    figures = PARTS[args.part](args)
    write_part(args.json, args.part, figures)
    kept = read_parts(args.json).get(args.part, figures)
    return judged(DEMANDS[args.part](kept))


def _kernels(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from benchmarks import compression_kernels

    torch.set_num_threads(1)
    figures = []
    for size in _numbers(args.sizes or "1,4,25,100"):
        for row in compression_kernels.rows(int(size)):
            figures.append(compression_kernels.measure(row, args.seconds))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = compression_kernels.table(figures)
    names = ("ours_ms", "other_ms", "ratio", "low", "high", "demand", "held")
    print(f"Kernels, one thread, {compression_kernels.simd_level()}")
    print(tabulate(rows, headers=compression_kernels.HEADERS, floatfmt=".2f"))
    return {f"{what}, {size} MB": dict(zip(names, row, strict=True)) for what, size, *row in rows}


def _exchange(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for rate in args.rates.split(","):
        for size in _numbers(args.sizes or ("25,100" if rate == "loopback" else "25")):
            times = _two_ranks(rate, "exchange", names=HOOKS, size_mb=size, rounds=args.rounds)
            for of_hook in times.values():
                of_hook["bytes"] = statistics.median(of_hook["bytes"])
                of_hook["ms"] = [round(ms, 3) for ms in of_hook["ms"]]
            results[f"{rate} {size:g} MB"] = times
            print(f"\nOne bucket of {size:g} MB, 2 ranks, {rate}\n")
            print(_exchange_table(times, size), flush=True)
    return results


def _exchange_table(times: dict[str, Any], size_mb: float) -> str:
    """Returns a table of exchange times.

    From each step's time, the time of the same round's step without an exchange is subtracted.
    """
    without = np.array(times["nothing"]["ms"])
    rows = []
    for name, one in times.items():
        if name == "nothing":
            continue
        alone_ms = np.median(np.array(one["ms"]) - without)
        over_plain, (low, high) = gain(times, "plain", name)
        over_torch, _ = gain(times, "torch fp16", name)
        wire = one["bytes"] / 1e6
        reported = one["wire_bytes"] / 1e6 if one["wire_bytes"] else None
        rows.append((name, alone_ms, over_plain, low, high, over_torch, reported, wire))
    headers = ("hook", "ms", "plain : it", "95 % low", "95 % high", "torch fp16 : it")
    headers += ("reported MB", "counted MB")
    text = tabulate(rows, headers=headers, floatfmt=".2f")
    return f"{text}\na step without exchange: {np.median(without):.2f} ms"


def _sum(args: argparse.Namespace) -> dict[str, Any]:
    """Prints the time for a sum of two fp16 values in gloo and in commprof.

    gloo's time is the difference between an fp16 and a uint8 all-reduce of equally many bytes.
    """
    result = _two_ranks(
        "loopback", "sum", size_mb=_numbers(args.sizes or "50")[0], rounds=args.rounds
    )
    elements = result["elements_summed"]
    gloo_ns = (np.array(result["fp16_ms"]) - np.array(result["uint8_ms"])) * 1e6 / elements
    ours_ns = np.array(result["ours_ms"]) * 1e6 / result["ours_elements"]
    print("16-bit sum, ns per element, fp16")
    print(
        f"  gloo {np.median(gloo_ns):.3f} [{np.percentile(gloo_ns, 25):.3f}, "
        f"{np.percentile(gloo_ns, 75):.3f}], ours {np.median(ours_ns):.3f}"
    )
    return result


def _powersgd(args: argparse.Namespace) -> dict[str, Any]:
    rows, results = [], {}
    for size in _numbers(args.sizes or "4,25,100"):
        for rank in (2, 4):
            times = _ranks(1, "powersgd", size_mb=size, rank=rank, rounds=args.rounds)
            results[f"{size} {rank}"] = times
            ratios = np.array(times["torch"]) / np.array(times["ours"])
            low, high = np.percentile(ratios, [25, 75])
            rows.append(
                (
                    size,
                    rank,
                    np.median(times["ours"]),
                    np.median(times["torch"]),
                    np.median(ratios),
                    low,
                    high,
                )
            )
    print("Time that PowerSGD adds to a DDP step, in a job of one process")
    headers = ("MB", "rank", "ours ms", "torch ms", "torch : ours", "25 %", "75 %")
    print(tabulate(rows, headers=headers, floatfmt=".2f"))
    return results


def _accuracy(args: argparse.Namespace) -> dict[str, Any]:
    result = _ranks(8, "accuracy", forked=True, rounds=1)
    print("Relative L2 error against the fp64 mean of 8 ranks' real gradients")
    print(tabulate(sorted(result["errors"].items()), headers=("hook", "error"), floatfmt=".2e"))
    print(f"buckets equal on all ranks, bit for bit: {result['identical']}")
    return result


def _training(args: argparse.Namespace) -> dict[str, Any]:
    told = {"names": TRAINED, "seeds": 3, "steps": args.steps}
    result = _ranks(2, "training", forked=True, **told)
    ends = {name: np.array(curves)[:, -20:].mean(axis=1) for name, curves in result.items()}
    rows = []
    for name, end in ends.items():
        difference = end - ends["plain"]
        rows.append((name, *end, difference.mean(), np.abs(difference).max()))
    print(f"Transformer workload, 2 ranks, {args.steps} steps: mean loss of the last 20, by seed")
    print(f"standard deviation of plain DDP's loss over the seeds: {ends['plain'].std(ddof=1):.4f}")
    headers = ("hook", "seed 0", "seed 1", "seed 2", "mean difference", "largest")
    print(tabulate(rows, headers=headers, floatfmt=".4f"))
    return {name: end.tolist() for name, end in ends.items()}


def _two_ranks(rate: str, part: str, **arguments: Any) -> Any:
    if rate == "loopback":
        return _ranks(2, part, interface="lo", **arguments)
    told = {"part": part, "interface": "eth0", **arguments}
    return on_hosts(RANK_SCRIPT, 2, 1, rate, told)


def _ranks(count: int, part: str, *, forked: bool = False, **arguments: Any) -> Any:
    return on_this_host(RANK_SCRIPT, count, {"part": part, **arguments}, forked=forked)


def _numbers(text: str) -> list[float]:
    return [float(x) for x in text.split(",")]


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "kernels": _kernels,
    "exchange": _exchange,
    "sum": _sum,
    "powersgd": _powersgd,
    "accuracy": _accuracy,
    "training": _training,
}

if __name__ == "__main__":
    sys.exit(main())
