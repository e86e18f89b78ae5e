"""Lanes for spans that may overlap."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from commprof.trace.columns import Ints


def assign_lanes(begin_ns: Ints, end_ns: Ints) -> Ints:
    """The lowest lane that is free when a span begins: as few lanes as spans at one moment.

    A span without length takes its lane for that moment. Greedy colouring of an interval graph
    in order of begin uses the fewest colours (Kleinberg and Tardos, Algorithm Design, 4.1).
    """
    lanes = np.zeros(len(begin_ns), dtype=np.int64)
    busy: list[tuple[int, int]] = []  # end, lane
    free: list[int] = []
    opened = 0
    until_ns = np.maximum(end_ns, begin_ns + 1)
    order = np.lexsort((until_ns, begin_ns))
    times = zip(begin_ns[order].tolist(), until_ns[order].tolist(), order.tolist(), strict=True)
    for begin, end, row in times:
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, opened = opened, opened + 1
        heappush(busy, (end, lane))
        lanes[row] = lane
    return lanes
