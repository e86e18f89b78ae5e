"""Runs one rank's part of all sweeps of a plan.

A sweep over N ranks uses a process group of the job's ranks 0 to N - 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from commprof.capture.job.metadata import clock_identity, host_identity
from commprof.forecast.microbench.buffers import Buffers
from commprof.forecast.microbench.calls import Call, Side, no_meeting
from commprof.forecast.microbench.collector import Cell, Collector, SweepRun
from commprof.forecast.microbench.context import context
from commprof.forecast.microbench.measure import make_sampled_call, measure_overlap
from commprof.forecast.microbench.operations import HOOK_PREFIX
from commprof.forecast.microbench.plan import BenchPlan, Sweep
from commprof.launch.backends import prepare_backend
from commprof.launch.progress import ProgressFile
from commprof.launch.worker import guarded


def run_bench_rank(plan_path: str) -> None:
    """Runs this rank's part of the plan in file ``plan_path``; the launcher calls this."""
    path = Path(plan_path)
    guarded(lambda: run_plan(BenchPlan.load(path), path.parent))


def run_plan(plan: BenchPlan, progress_directory: Path | None = None) -> None:
    """Runs this rank's part of all sweeps.

    The environment gives rank and world size. The job may have more ranks than the sweeps need. If
    ``progress_directory`` is given, rank 0 writes its progress to this directory.
    """
    torch.set_num_threads(1)
    device = prepare_backend(plan.backend, int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, (tuple(clock_identity()), tuple(host_identity())))
    clocks, hosts = (list(each) for each in zip(*places, strict=True))
    runner = _Runner(plan, clocks, hosts, device, progress_directory)
    with closing(runner):
        for sweep in plan.sweeps():
            runner.run(sweep)
    dist.barrier()
    dist.destroy_process_group()


class _Runner:
    def __init__(
        self,
        plan: BenchPlan,
        clocks: list[Any],
        hosts: list[Any],
        device: str,
        progress_directory: Path | None,
    ) -> None:
        self._plan = plan
        self._clocks = clocks
        self._rank = dist.get_rank()
        self._device = device
        self._controls: dict[int, Any] = {}
        self._collector = None
        self._progress = None
        self._rounds_done = 0
        if self._rank == 0:
            self._collector = Collector(plan, context(plan, clocks, hosts))
            if progress_directory is not None:
                self._progress = ProgressFile(progress_directory)

    def run(self, sweep: Sweep) -> None:
        """Runs a sweep; all ranks must call this, even ranks outside of the sweep's group."""
        control = self._control(sweep.world_size)
        if self._plan.overlap:
            self._overlap(sweep, control)
            return
        own = SweepRun(self._plan, sweep, control) if self._is_in(sweep) else None
        try:
            self._rounds(sweep, own)
        finally:
            if self._collector is not None:
                self._collector.write()
        if own is not None:
            own.close()

    def _rounds(self, sweep: Sweep, own: SweepRun | None) -> None:
        # A hook keeps its DDP model in all rounds, and so its group.
        keeps_group = sweep.op.startswith(HOOK_PREFIX)
        group = self._group(sweep) if keeps_group else None
        for turn in range(self._plan.rounds):
            if not keeps_group:
                group = self._group(sweep)
            cells: Iterator[Cell] = iter(())
            if own is not None:
                side = self._side(sweep, group)
                cells = own.round(turn, side, self._meeting(side))
            # The first round is gathered row by row, so that a failure keeps the finished rows.
            for _ in range(sweep.cells if turn == 0 else 1):
                self._add(sweep, list(islice(cells, 1) if turn == 0 else cells))
            if not keeps_group:
                dist.destroy_process_group(group)
            self._count_round()

    def _add(self, sweep: Sweep, own: list[Cell]) -> None:
        """Gathers every rank's samples at rank 0; all ranks must call this equally often."""
        ranks = self._gathered(own)
        if self._collector is not None:
            one_clock = self._has_one_clock(sweep.world_size)
            self._collector.add(sweep, ranks[: sweep.world_size], one_clock)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()

    def _overlap(self, sweep: Sweep, control: Any) -> None:
        group = self._group(sweep)
        side = self._side(sweep, group)
        for count in sweep.counts:
            cells = []
            if self._is_in(sweep):
                meet = self._meeting(side)
                cells = [measure_overlap(self._plan, sweep.op, count, side, meet, control)]
            ranks = self._gathered(cells)
            if self._collector is not None:
                self._collector.add_overlap(sweep, ranks[: sweep.world_size])
        dist.destroy_process_group(group)
        self._count_round()

    def _is_in(self, sweep: Sweep) -> bool:
        return self._rank < sweep.world_size

    def _group(self, sweep: Sweep) -> Any:
        return dist.new_group(list(range(sweep.world_size)), backend=self._plan.backend)

    def _side(self, sweep: Sweep, group: Any) -> Side:
        return Side(group, self._rank, sweep.world_size, self._device)

    def _control(self, world_size: int) -> Any:
        """Returns a gloo group in which a sweep's ranks agree on the number of calls."""
        if world_size not in self._controls:
            self._controls[world_size] = dist.new_group(list(range(world_size)), backend="gloo")
        return self._controls[world_size]

    def _meeting(self, side: Side) -> Call:
        if self._plan.sync == "none":
            return no_meeting
        nothing = torch.empty(0)
        return make_sampled_call("barrier", side, Buffers(nothing, nothing), "sum")

    def _has_one_clock(self, world_size: int) -> bool:
        return len(set(self._clocks[:world_size])) == 1

    def _gathered(self, own: list[Any]) -> list[list[Any]]:
        """On rank 0, returns every rank's list; on the other ranks, None for each rank."""
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(own, gathered if self._rank == 0 else None)
        return gathered

    def _count_round(self) -> None:
        self._rounds_done += 1
        if self._progress is not None:
            self._progress.update(self._rounds_done)
