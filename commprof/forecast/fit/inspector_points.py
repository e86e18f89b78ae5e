"""Reads points for cost curves from logs of NCCL Inspector.

The times are those of transfers; they do not include waiting for other ranks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from commprof.analysis.inspector.communicators import split_job
from commprof.analysis.inspector.transfers import LEAST_CALLS, InspectedTransfers, transfers_of
from commprof.forecast.costs.algorithms import OPERATIONS
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.fit.points import Measurement, Point, with_error
from commprof.invocation import quoted
from commprof.recordings.inspector import Progress, read_logs
from commprof.text import counted

#: A point keeps the times of fewer than twice this number of calls.
_MOST_SAMPLES = 500


def read_inspector_points(path: Path, progress: Progress | None = None) -> Measurement:
    """Reads a point per operation, number of ranks, size and link class.

    Raises:
        CommprofError: there is no operation to read.
    """
    job = split_job(read_logs(path, progress))
    points, left_out = [], []
    for found in transfers_of(job):
        reason = _unusable(found)
        if reason:
            left_out.append(
                f"{quoted(path)}: {found.op} of {found.size_bytes} bytes on {found.ranks} ranks "
                f"{reason}"
            )
        else:
            points.append(_point(found))
    unsplit = sorted(
        {
            each.kind
            for one in job.communicators
            for each in one.operations
            if not each.is_split and one.ranks > 1
        }
    )
    if unsplit:
        left_out.append(
            f"{quoted(path)}: {' and '.join(unsplit)}: the logs do not name the root, so the times "
            "include waiting"
        )
    remark = (
        f"{quoted(path)}: times are those of transfers in a running job, without kernel launches; "
        "other work at the same time may have lengthened the transfers"
    )
    return Measurement(tuple(points), {}, tuple(left_out), (remark,) if points else ())


def _unusable(transfers: InspectedTransfers) -> str:
    if transfers.op not in OPERATIONS:
        return "has no cost model"
    if transfers.crosses_hosts is None:
        return "ran on unknown hosts"
    calls = sum(map(len, transfers.by_communicator_us))
    if calls < LEAST_CALLS:
        return f"has {counted(calls, 'complete call')} only"
    return ""


def _point(transfers: InspectedTransfers) -> Point:
    samples_s = transfers.samples_us.astype(np.float64) / 1e6
    sample_s = samples_s[:: max(1, len(samples_s) // _MOST_SAMPLES)]
    return with_error(
        Point(
            op=transfers.op,
            backend="nccl",
            ranks=transfers.ranks,
            size_bytes=float(transfers.size_bytes),
            time_s=float(np.median(samples_s)),
            samples_s=tuple(sample_s.tolist()),
            link=OTHER_HOST if transfers.crosses_hosts else SAME_HOST,
        )
    )
