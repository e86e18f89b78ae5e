"""Replays recorded DDP steps in another setting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.errors import CommprofError
from commprof.forecast.costs.regression import Line
from commprof.forecast.replay.exchange import replay_ddp
from commprof.forecast.replay.setting import PredictedSetting, make_setting
from commprof.forecast.scenario.model import (
    STEPS,
    Medians,
    Model,
    Replayed,
    Replicated,
    new_random,
    replicated,
)
from commprof.forecast.scenario.scenario import STRONG, Scenario
from commprof.forecast.scenario.schedule import Schedule

#: Largest number of values drawn at a time, to limit memory.
_MOST_VALUES = 4_000_000


@dataclass(frozen=True)
class DrawnReplay:
    """Steps of all ranks together, sampled from recorded steps.

    Times are in seconds since the ranks last synchronised.
    """

    #: [steps, buckets]: when the bucket is ready on all ranks.
    ready_s: Floats
    #: [steps]: when DDP's finalisation begins on the latest rank.
    backward_end_s: Floats
    #: [steps]: mean over the ranks of the time when DDP's finalisation begins.
    mean_backward_end_s: Floats


def draw_steps(
    ready_s: Floats,
    backward_end_s: Floats,
    ranks: int,
    steps: int,
    random: np.random.Generator,
) -> DrawnReplay:
    """Samples steps of any number of ranks from the recorded steps, with replacement.

    A collective starts when all ranks are ready, so only the latest time of all ranks counts. A
    sampled step consists of blocks. Each block has all ranks of one recorded step, because ranks on
    a busy host are late together. With far more blocks than recorded steps, waiting is
    underestimated.

    Args:
        ready_s: times when buckets are ready, in s since the ranks last synchronised, as [recorded
            steps, recorded ranks, buckets].
        backward_end_s: times when DDP begins to wait for its buckets, on the same clock, as
            [recorded steps, recorded ranks].
        ranks: number of ranks of the steps to draw.
        steps: number of steps to draw.
        random: random generator.
    """
    recorded_steps, recorded_ranks, buckets = ready_s.shape
    table = np.concatenate([ready_s, backward_end_s[:, :, None]], axis=2)
    blocks = -(-ranks // recorded_ranks)
    at_once = max(1, _MOST_VALUES // (blocks * recorded_ranks * (buckets + 1)))
    latest, mean = [], []
    for begin in range(0, steps, at_once):
        count = min(at_once, steps - begin)
        # [steps, blocks, recorded ranks, buckets + 1]
        drawn = table[random.integers(0, recorded_steps, (count, blocks))]
        drawn = drawn.reshape(count, blocks * recorded_ranks, buckets + 1)[:, :ranks]
        latest.append(drawn.max(axis=1))
        mean.append(drawn[:, :, -1].mean(axis=1))
    last = np.concatenate(latest)
    return DrawnReplay(last[:, :-1], last[:, -1], np.concatenate(mean))


Floats = npt.NDArray[np.float64]

_STEPS_PER_REPLICATE = 10


@dataclass(frozen=True)
class Replay(Model):
    """A model that replays a recorded DDP schedule with fitted costs."""

    schedule: Schedule
    #: Seconds of a rank's own work per step, as a straight line over the samples per rank; None if
    #: fewer than two batch sizes are known.
    compute_by_batch: Line | None = None
    #: Smallest and largest number of samples per rank in the fit of ``compute_by_batch``.
    batches: tuple[float, float] = (0.0, math.inf)

    def replayed(self, scenario: Scenario) -> tuple[Replicated, Replayed]:
        """Replays a scenario, then again for each bootstrap replicate of the steps and costs."""
        if scenario.changes_sharding:
            raise CommprofError(
                "options of sharding (--wrap-blocks, --reshard-after-forward, --gather-dtype, "
                "--reduce-dtype, --shard-ranks, --accumulate) need a run of FSDP2 or HSDP; this "
                "run is of DistributedDataParallel, whose ranks hold all parameters"
            )
        setting = make_setting(
            self.schedule, self.profile, self.compute_by_batch, scenario, self.batches
        )
        random = new_random()
        run = self._run(setting, STEPS, random)
        count = max(_STEPS_PER_REPLICATE, min(STEPS, 20_000 // scenario.world_size))
        medians = replicated(
            _medians(run),
            len(setting.ready_s),
            random,
            lambda number, rows: _medians(
                self._run(setting.replicate(number), count, random, rows)
            ),
        )
        return medians, _replayed(self, setting, run)

    def _run(
        self,
        setting: PredictedSetting,
        steps: int,
        random: np.random.Generator,
        rows: npt.NDArray[np.int64] | None = None,
    ) -> _Run:
        chosen = slice(None) if rows is None else rows
        ready_s, backward_end_s = setting.ready_s[chosen], setting.backward_end_s[chosen]
        ranks = setting.scenario.world_size
        drawn = draw_steps(ready_s, backward_end_s, ranks, steps, random)
        total, transfer = setting.bucket_times()
        workers = 1 if setting.hook else self.schedule.workers
        shift = setting.other_s()
        ready, last = drawn.ready_s + shift, drawn.backward_end_s + shift
        step, waited = replay_ddp(
            ready, last, transfer, total - transfer, setting.copy_s, workers if ranks > 1 else 0
        )
        return _Run(
            step_s=step,
            transfer_s=waited,
            wait_s=drawn.backward_end_s - drawn.mean_backward_end_s,
            busy_s=np.full(len(step), float(total.sum() if ranks > 1 else 0.0)),
            other_s=shift + float(np.median(setting.kept_wait_s[chosen])),
            backward_end_s=last,
        )


@dataclass(frozen=True)
class _Run:
    step_s: Floats
    transfer_s: Floats
    wait_s: Floats
    busy_s: Floats
    #: Time of collectives that exchange no gradients.
    other_s: float
    backward_end_s: Floats


def _medians(run: _Run) -> Medians:
    wait, buckets = float(np.median(run.wait_s)), float(np.median(run.transfer_s))
    transfer = buckets + run.other_s
    return Medians(
        step_s=float(np.median(run.step_s)),
        wait_s=wait,
        transfer_s=transfer,
        exposed_s=wait + transfer,
        hidden_s=max(0.0, float(np.median(run.busy_s)) - buckets),
    )


def _replayed(replay: Replay, setting: PredictedSetting, run: _Run) -> Replayed:
    schedule, scenario = replay.schedule, setting.scenario
    copies = float(setting.copy_s.sum())
    batch = schedule.batch.per_rank
    if scenario.scaling == STRONG:
        batch = batch * schedule.world_size / scenario.world_size
    sent = _sent_bytes(setting)
    return Replayed(
        bare_s=float(np.median(run.backward_end_s)) + copies,
        busy_s=float(np.median(run.busy_s)),
        own_s=float(np.median(setting.backward_end_s - setting.kept_wait_s)) + copies,
        batch=batch,
        buckets=len(setting.bucket_bytes),
        sent_bytes=sent,
        outside=setting.outside,
        remarks=setting.remarks,
        hiding_bytes_per_s=_hiding(setting, sent),
    )


def _sent_bytes(setting: PredictedSetting) -> float:
    ranks = setting.scenario.world_size
    if setting.hook is not None:
        hook, per_host = setting.hook, setting.link.ranks_per_host
        peers = hook.peers(ranks, per_host)
        sent = sum(hook.sent_bytes(float(s), peers) for s in setting.bucket_bytes)
        return sent / per_host if hook.between_hosts else sent
    return sum(setting.link.sent_bytes(float(s), ranks) for s in setting.bucket_bytes)


def _hiding(setting: PredictedSetting, sent: float) -> float:
    """Returns the bandwidth, in bytes/s, that is needed to hide all buckets but the last.

    NaN for one bucket, or if all buckets become ready at the same time. ``sent`` is the number of
    bytes that one rank sends per step.
    """
    ready = np.median(setting.ready_s.max(axis=1), axis=0)
    if len(ready) < 2 or ready[-1] <= ready[0]:
        return math.nan
    share = 1 - setting.bucket_bytes[-1] / setting.bucket_bytes.sum()
    return float(sent * share / (ready[-1] - ready[0]))
