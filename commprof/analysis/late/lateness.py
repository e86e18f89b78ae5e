"""Finds the late rank of one world size, and where this rank lost time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.evidence import Evidence, Figure, MostWaitedFor
from commprof.analysis.late.costs import LongerPhase, WaitCost, longer_phase, wait_costs
from commprof.analysis.late.few_steps import enough_steps, late_rank_of_few_steps
from commprof.analysis.late.functions import GrownFunctions, grown_functions
from commprof.analysis.late.late_series import late_series
from commprof.analysis.late.lines import LongerLines, longer_lines
from commprof.analysis.late.slower_ranks import SlowerRanks, slower_ranks
from commprof.analysis.late.stragglers import (
    OF_STEP,
    LateRank,
    late_rank,
    of_ranks,
    with_cause,
)
from commprof.analysis.step.breakdown import Floats
from commprof.analysis.step.exposure import NO_CORE, exposures_of
from commprof.analysis.step.measured import MeasuredSteps, MeasuredWorld, slowest_ns
from commprof.analysis.step.rank_parts import RankParts
from commprof.analysis.step.stalls import stalled
from commprof.field_groups import FieldGroup
from commprof.text import counted
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import among
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import POINT_TO_POINT, Kind
from commprof.units import ms_to_ns, us_to_ns

#: For commprof's own recordings of few steps: a rank is named only if chance explains its lateness
#: with at most this probability. In 600 simulated runs without a late rank, this limit named no
#: rank, but ``stragglers.SIGNIFICANCE`` named a rank in 2 runs.
_SIGNIFICANCE_OF_OWN_RUNS = 0.001
#: A stall is attributed to one rank if the other ranks waited for this rank for at least this
#: fraction of the stalled step.
_NEARLY_ALL = 0.8


@dataclass(frozen=True)
class Lateness(FieldGroup):
    """Waiting at one world size by cause, the late rank, and where this rank lost time."""

    late_rank: LateRank | None = None
    #: Waiting by rank and cause; the sum is ``WorldResult.parts.wait_ms``. Empty if it is not known
    #: when ranks arrived.
    wait_costs: tuple[WaitCost, ...] = ()
    #: None if the Linux kernel's counters show no phase that is longer on one rank than on others.
    longer_phase: LongerPhase | None = None
    #: Lines of the script between which the late rank works longer; empty without stacks.
    longer_lines: tuple[LongerLines, ...] = ()
    #: Functions in which the late rank takes longer; None without a late rank or samples.
    grown_functions: GrownFunctions | None = None
    #: The rank that caused most waiting, whether or not it is late. Stalled steps do not count.
    most_waited_for: MostWaitedFor = field(default_factory=MostWaitedFor)
    #: Several ranks that work longer than all others; None if there are none.
    slower: SlowerRanks | None = None
    #: By number of a stalled step: the rank that the others waited for during most of the step.
    stalled_for: Mapping[int, int] = field(default_factory=dict)

    def supported(self, evidence: Evidence) -> Lateness:
        """Returns a copy without the figures that the recordings do not support."""
        return replace(
            self,
            late_rank=self.late_rank if evidence.supports(Figure.LATE) else None,
            wait_costs=self.wait_costs if evidence.supports(Figure.SPLIT) else (),
            longer_phase=self.longer_phase if evidence.supports(Figure.PARTS) else None,
            slower=self.slower if evidence.supports(Figure.LATE) else None,
            most_waited_for=self.most_waited_for
            if evidence.supports(Figure.SPLIT)
            else replace(self.most_waited_for, rank=-1, share=math.nan),
            stalled_for=self.stalled_for if evidence.supports(Figure.SPLIT) else {},
        )

    def inside_phases(self, run: WorldRun, seen: MeasuredWorld) -> Lateness:
        """Returns a copy with the lines and functions in which the late rank takes longer."""
        if self.late_rank is None:
            return self
        rank = self.late_rank.rank
        return replace(
            self,
            longer_lines=longer_lines(rank, seen),
            grown_functions=grown_functions(rank, run, seen),
        )


def lateness(
    run: WorldRun, seen: MeasuredSteps, step_median_ms: float, between_ranks_us: float
) -> Lateness:
    """Returns the waiting by cause, and the late rank.

    Args:
        run: the ranks' recordings.
        seen: the ranks' measured steps.
        step_median_ms: median over steps of the slowest rank's wall time.
        between_ranks_us: bound on the error of time differences between ranks.
    """
    taken = ~stalled(slowest_ns(seen.measured))
    measured = seen.measured
    caused = measured.caused_in_all(taken)
    by_waiting = measured.pair_waits(seen.ranks, taken, without=NO_CORE)
    enough = enough_steps(of_ranks(caused), by_waiting)
    step_ns, error_ns = ms_to_ns(step_median_ms), us_to_ns(between_ranks_us)
    slower = None
    if len(caused) < enough:
        # As in ``of_ranks``, waiting for ranks that had no core to run on is left out.
        no_core_ns = measured.caused.of_cause_ns(NO_CORE).reshape(len(measured), -1)
        waited = np.nan_to_num(measured.table("wait") - no_core_ns).compress(taken, axis=1)
        late = late_rank_of_few_steps(
            of_ranks(caused), waited, seen.ranks, step_ns, error_ns, by_waiting
        )
        if late is not None and not seen.recorded[0].is_foreign:
            is_beyond_chance = late.p_value <= _SIGNIFICANCE_OF_OWN_RUNS
            late = with_cause(late, caused) if is_beyond_chance else None
        if late is not None:  # make ``late.share`` a share of all waiting
            late = replace(late, share=late.share * float(of_ranks(caused).sum() / caused.sum()))
    else:
        origin_ns = measured.column(lambda part: part.by_origin_ns.compress(taken, axis=2))
        late = late_rank(caused, by_waiting, origin_ns, seen.ranks, step_ns, error_ns)
        if not math.isnan(error_ns) and not _waits_for_messages(seen):
            hosts = {rank: _host(run.traces[rank]) for rank in seen.ranks}
            waits = by_waiting, float(caused.sum()), len(caused)
            latest = late.rank if late else None
            slower = slower_ranks(origin_ns, *waits, seen.ranks, hosts, step_ns, error_ns, latest)
    if late is not None and late.phase == "other" and _lacks_phases(measured):
        late = replace(late, phase=None, phase_share=math.nan)  # "other" includes unknown phases
    if slower is not None and slower.phase == "other" and _lacks_phases(measured):
        slower = replace(slower, phase=None)
    if late is not None:
        late = _beyond_its_turn(late, seen, step_ns)
    one_series = ""
    if late is None and slower is None:
        one_series = _one_series(of_ranks(caused), measured.step[taken], step_ns)
    by_rank = caused.sum(axis=(0, 2))
    most = int(np.argmax(by_rank)) if by_rank.any() else -1
    most_waited_for = MostWaitedFor(
        rank=most,
        share=float(by_rank[most] / by_rank.sum()) if most >= 0 else math.nan,
        few_steps=_few_steps(len(caused), enough) if len(caused) < enough else "",
        one_series=one_series,
    )
    return Lateness(
        late_rank=late,
        wait_costs=wait_costs(measured),
        longer_phase=longer_phase(seen.ranks, measured),
        most_waited_for=most_waited_for,
        slower=slower,
        stalled_for=_stalled_for(seen, ~taken),
    )


def _stalled_for(seen: MeasuredSteps, stalls: npt.NDArray[np.bool_]) -> dict[int, int]:
    if not stalls.any():
        return {}
    by_rank = seen.measured.caused_in_all(stalls).sum(axis=2)
    ranks, waited = by_rank.argmax(axis=1), by_rank.max(axis=1)
    others_ns = slowest_ns(seen.measured)[stalls] * (len(seen.ranks) - 1)
    numbers = seen.measured.step[stalls]
    is_for_one = waited >= _NEARLY_ALL * others_ns
    return dict(zip(numbers[is_for_one].tolist(), ranks[is_for_one].tolist(), strict=True))


def _host(trace: Trace) -> str:
    name = str(trace.metadata["machine"]["hostname"])
    return "" if trace.is_foreign and name == "unknown" else name


def _beyond_its_turn(late: LateRank, seen: MeasuredSteps, step_ns: float) -> LateRank | None:
    """Leaves out the waiting that a pipeline causes even if no rank is late.

    In a pipeline, each stage waits for messages of other stages. So if most waiting is for
    messages, only the extra work of the rank counts: its own work minus the mean of the others.
    None if this extra work is less than 2 % of a step.
    """
    if late.rank not in seen.ranks or not _waits_for_messages(seen):
        return late
    work_ns = seen.measured.column(lambda part: part.work_ns.sum(axis=1).mean(axis=1))
    position = seen.ranks.index(late.rank)
    longer_ns = float(work_ns[position] - np.delete(work_ns, position).mean())
    if not longer_ns < late.wait_ns:
        return late
    if longer_ns < OF_STEP * step_ns:
        return None
    part = longer_ns / late.wait_ns
    return replace(late, wait_ns=longer_ns, share=late.share * part, cost_s=late.cost_s * part)


def _waits_for_messages(seen: MeasuredSteps) -> bool:
    """True if most waiting is for messages, as between the stages of a pipeline."""
    # Checked first, because most jobs send no messages, and the tables below need much memory.
    ops = (columns.of_kind(trace.records, Kind.ISSUE)["op"] for trace in seen.traces)
    if not any(among(op, *POINT_TO_POINT).any() for op in ops):
        return False
    waited_ns = of_messages_ns = 0.0
    for trace in seen.traces:
        waits, table = exposures_of(trace), columns.collectives(trace)
        known = waits.collective >= 0
        is_message = among(table.op[waits.collective[known]], *POINT_TO_POINT)
        waited_ns += float(waits.waited_ns.sum())
        of_messages_ns += float(waits.waited_ns[known][is_message].sum())
    return of_messages_ns > waited_ns / 2


def _one_series(waited_for_ns: Floats, numbers: Ints, step_ns: float) -> str:
    series = late_series(waited_for_ns, step_ns)
    if series is None:
        return ""
    first, last = numbers[series][[0, -1]].tolist()
    if series.stop == len(numbers):
        return f"from step {first} to the last step, {last}"
    return f"from step {first} to step {last}"


def _few_steps(steps: int, enough: int) -> str:
    be = "is" if steps == 1 else "are"
    return f"{counted(steps, 'step')} {be} too few to rule out chance; {enough} steps are enough"


def _lacks_phases(parts: RankParts) -> bool:
    """True if a rank's device ran kernels whose phase is not known."""
    return bool((parts.table("unphased_compute") > 0).any())
