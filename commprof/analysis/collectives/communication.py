"""Collectives, traffic and exchange of parameters at one world size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from commprof.analysis.align.interfaces import trained_no_ddp
from commprof.analysis.collectives.apart import TrainedApart, trained_apart
from commprof.analysis.collectives.compression import CompressionRow, compression_rows
from commprof.analysis.collectives.host_links import HostLinks, host_links
from commprof.analysis.collectives.in_flight import TimeInFlight, times_in_flight
from commprof.analysis.collectives.kinds import CollectiveRow, collective_rows
from commprof.analysis.collectives.sharding import Sharding, sharding
from commprof.analysis.evidence import Evidence, Figure
from commprof.analysis.step.measured import MeasuredWorld
from commprof.field_groups import FieldGroup
from commprof.trace import columns
from commprof.trace.exchanged import exchanged_by_each, trained_by
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun, run_of
from commprof.trace.schema import Kind

#: Value of ``Communication.no_ddp`` if no DDP model exchanges gradients.
NO_DDP_MODEL: Final = "no DDP model exchanged gradients in this run"


@dataclass(frozen=True)
class Communication(FieldGroup):
    """Collectives, traffic and exchange of parameters at one world size."""

    #: Number of measured steps whose calls are counted. In a long run, this is a sample of the
    #: steps.
    call_steps: int
    #: The kind with the most exposed time comes first.
    collectives: tuple[CollectiveRow, ...] = ()
    times_in_flight: tuple[TimeInFlight, ...] = ()
    #: Sorted by scheme and bucket; empty without a compressor.
    compression: tuple[CompressionRow, ...] = ()
    #: None if all ranks ran on one host, or the hosts are unknown.
    host_links: HostLinks | None = None
    #: None if no parameters are sharded.
    sharding: Sharding | None = None
    #: A clause that says why DDP's own all-reduce exchanged no gradients. Empty if this all-reduce
    #: exchanged gradients, or if another profiler recorded the run.
    no_ddp: str = ""
    #: Ranks or parameters that are trained without an exchange of gradients; None if there are
    #: none, or if too little is known.
    apart: TrainedApart | None = None

    def supported(self, evidence: Evidence) -> Communication:
        """Returns a copy without the figures that the recordings do not support."""
        shown = self
        if not evidence.supports(Figure.EXPOSED):
            rows = tuple(map(CollectiveRow.unexposed, shown.collectives))
            shown = replace(shown, collectives=rows, sharding=None)
        if not evidence.supports(Figure.CALLS):
            rows = tuple(map(CollectiveRow.untimed, shown.collectives))
            shown = replace(shown, collectives=rows, times_in_flight=())
        return shown


def communication(run: WorldRun, seen: MeasuredWorld) -> Communication:
    """Returns the collectives, traffic and exchange of parameters at one world size."""
    traces, tables, step = seen.traces, seen.tables, seen.measured.step
    foreign = seen.recorded[0].is_foreign
    return Communication(
        call_steps=len(step),
        collectives=collective_rows(seen.matching, traces, tables, step, seen.clocks_shared),
        times_in_flight=times_in_flight(traces, tables, step),
        compression=compression_rows(traces, step, run.world_size),
        host_links=None if foreign else host_links(run.world_size, seen),
        sharding=None if foreign else sharding(seen, str(run_of(run.directory, run.world_size))),
        no_ddp="" if foreign else _no_ddp(seen.all_steps.recorded),
        apart=None if foreign else _apart(run, seen),
    )


def _apart(run: WorldRun, seen: MeasuredWorld) -> TrainedApart | None:
    """Returns ``Communication.apart``; None if missing records may hide an exchange."""
    if seen.whole is not None or any(trace.dropped for trace in seen.recorded):
        return None
    by_python = any(trace.metadata.get("capture") == "python" for trace in seen.recorded)
    found = exchanged_by_each(seen.on_host)
    return trained_apart(found, run.world_size, sees_all=not by_python)


def _no_ddp(traces: Sequence[Trace]) -> str:
    sources = [trace.metadata.get("cross_check_sources", {}) for trace in traces]
    logs = [log for each in sources for log in each.get("ddp_logs", ())]
    own = [str(log.get("own_exchange") or "") for log in logs if isinstance(log, dict)]
    if own and all(own):
        return f"{own[0]} exchanges the gradients instead of DDP's all-reduce"
    trained = [trained_by(trace.metadata) for trace in traces]
    is_sharded = any(of_rank is None or of_rank.sharded for of_rank in trained)
    if all(map(trained_no_ddp, traces)) and not is_sharded:
        # Finalisations (see ``columns.finalizations``) do not prove that there is DDP. A backward
        # pass in which the script itself exchanges gradients has finalisations too.
        return NO_DDP_MODEL
    # In most runs, the first rank has finalisations. Then the other ranks are not read.
    by_ddp = map(columns.finalizations, traces)
    buckets = (columns.of_kind(trace.records, Kind.BUCKET) for trace in traces)
    if any(map(len, by_ddp)) or any(map(len, buckets)):
        return ""
    return NO_DDP_MODEL
