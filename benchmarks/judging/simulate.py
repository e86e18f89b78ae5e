"""Simulates the gradient exchange of one training step from its schedule.

The model is gloo's ring all-reduce under DDP. All ranks have the same schedule and send in the same
way, so the model has only one link, from a rank to its neighbour in the ring.

- A bucket's all-reduce is issued when its gradients are ready. Two threads per process group
  work on all-reduces, in order of issue; a third all-reduce waits until one of the threads is free.
- An all-reduce is cut into ``max(2 n, size / 1 MiB)`` segments, rounded up to a multiple of the
  ``n`` ranks. It begins with a reduce-scatter, in which a rank sends ``(n - 1) / n`` of the
  segments. An all-gather follows, in which a rank sends the same number of segments.
- At most two segments of an all-reduce are in flight. All segments use one connection, which sends
  them in the order of issue.
- A link transfers ``bytes_per_s``. After idle time it transfers up to ``burst_bytes`` immediately,
  like a token bucket.
- When backward is over, DDP waits for its last bucket. This waiting time is exposed.

The model ignores processor time for copies, sums and wake-ups.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

#: gloo's largest segment.
SEGMENT_BYTES = 1 << 20
#: Number of gloo's threads per process group, as set by torch.
WORKERS = 2
#: Largest number of segments of one all-reduce that are in flight.
_WINDOW = 2


@dataclass(frozen=True)
class Bucket:
    """A gradient bucket; ``ready_s`` is the time from the begin of backward."""

    ready_s: float
    size_bytes: float


@dataclass(frozen=True)
class Link:
    """A link with its rate, and with the bytes that it transfers immediately after idle time."""

    bytes_per_s: float
    burst_bytes: float = 0.0


@dataclass(frozen=True)
class SimulatedStep:
    """Result of the simulation; times are seconds since the begin of backward."""

    #: Begin and end of each bucket's exchange.
    begin_s: tuple[float, ...]
    end_s: tuple[float, ...]
    #: Time from the end of backward until the last bucket is complete.
    exposed_s: float


def simulate(
    buckets: Sequence[Bucket],
    backward_s: float,
    ranks: int,
    link: Link,
    workers: int = WORKERS,
) -> SimulatedStep:
    """Runs one step's all-reduces over an idle link.

    Args:
        buckets: buckets in order of issue, so ``ready_s`` must not decrease.
        backward_s: end of backward.
        ranks: ranks in the ring; a single rank sends nothing.
        link: link of every rank.
        workers: number of all-reduces that run at a time.

    Raises:
        ValueError: the buckets are not in order of issue, or a number is out of range.
    """
    ready = [bucket.ready_s for bucket in buckets]
    if ready != sorted(ready):
        raise ValueError("buckets must be in order of issue")
    if ranks < 1 or workers < 1 or not link.bytes_per_s > 0:
        raise ValueError("ranks, workers and bytes_per_s must be positive")
    exchange = _Exchange(buckets, ranks, link, workers)
    exchange.run()
    last = max(exchange.end_s, default=0.0)
    return SimulatedStep(
        tuple(exchange.begin_s), tuple(exchange.end_s), max(0.0, last - backward_s)
    )


def ring_segments(size_bytes: float, ranks: int) -> int:
    """Returns the number of segments of an all-reduce, which is a multiple of the ranks."""
    wanted = max(math.ceil(size_bytes / SEGMENT_BYTES), 2 * ranks)
    return -(-wanted // ranks) * ranks


class _Transfer:
    """The segments that one rank sends in an all-reduce."""

    def __init__(self, size_bytes: float, ranks: int) -> None:
        segments = ring_segments(size_bytes, ranks)
        self.segment_bytes = size_bytes / segments
        self.half = segments - segments // ranks
        self.posted = self.passed = 0

    @property
    def done(self) -> bool:
        return self.passed == 2 * self.half

    @property
    def may_post(self) -> bool:
        if self.posted == 2 * self.half or self.posted - self.passed == _WINDOW:
            return False
        # The all-gather begins only when the whole reduce-scatter is over.
        return self.posted != self.half or self.passed == self.half


class _Exchange:
    """Event loop; in an event a bucket becomes ready, or a segment has passed."""

    def __init__(self, buckets: Sequence[Bucket], ranks: int, link: Link, workers: int) -> None:
        self.begin_s = [math.nan] * len(buckets)
        self.end_s = [math.nan] * len(buckets)
        self._transfers = [_Transfer(bucket.size_bytes, ranks) for bucket in buckets]
        self._free = workers
        self._pipe = _Pipe(link)
        self._waiting: deque[int] = deque()
        self._numbers = itertools.count()  # events with equal times stay in order
        self._events = [
            (bucket.ready_s, next(self._numbers), i) for i, bucket in enumerate(buckets)
        ]

    def run(self) -> None:
        while self._events:
            now, number, i = heapq.heappop(self._events)
            if number < len(self._transfers):
                self._waiting.append(i)
            else:
                self._transfers[i].passed += 1
                self._go_on(now, i)
            while self._free and self._waiting:
                started = self._waiting.popleft()
                self.begin_s[started] = now
                self._free -= 1
                self._go_on(now, started)

    def _go_on(self, now: float, i: int) -> None:
        transfer = self._transfers[i]
        if transfer.done:
            self.end_s[i] = now
            self._free += 1
        while transfer.may_post:
            transfer.posted += 1
            passed_s = self._pipe.send(now, transfer.segment_bytes)
            heapq.heappush(self._events, (passed_s, next(self._numbers), i))


class _Pipe:
    """A link that transfers segments one after the other, and saves up tokens while idle."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tokens = link.burst_bytes
        self._idle_since_s = 0.0

    def send(self, now: float, size_bytes: float) -> float:
        """Returns the time at which all bytes have been transferred."""
        begin_s = max(now, self._idle_since_s)
        saved = (begin_s - self._idle_since_s) * self._link.bytes_per_s
        tokens = min(self._link.burst_bytes, self._tokens + saved)
        at_once = min(tokens, size_bytes)
        self._tokens = tokens - at_once
        self._idle_since_s = begin_s + (size_bytes - at_once) / self._link.bytes_per_s
        return self._idle_since_s
