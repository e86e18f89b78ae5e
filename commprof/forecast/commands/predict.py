"""``commprof predict``: predict a recorded step on other machines, links and settings."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.commands.options.quantities import duration, listed, number, rate, whole
from commprof.commands.options.terminal import prose_width, table_width
from commprof.errors import CommprofError, UsageError
from commprof.forecast.commands.tried_setting import Tried, tried
from commprof.forecast.costs.machine_profile import MachineProfile, default_path, load_profile
from commprof.forecast.fit.build import build_profile
from commprof.forecast.replay.recorded import (
    RecordedJob,
    base_of,
    batches,
    compute_by_batch,
    read_recorded,
)
from commprof.forecast.replay.replay import Replay
from commprof.forecast.report import as_json as prediction_json
from commprof.forecast.report import best as prediction_best
from commprof.forecast.report import table as prediction_table
from commprof.forecast.scenario.model import Model
from commprof.forecast.scenario.scenario import (
    ALGORITHMS,
    DTYPE_BYTES,
    FLAT,
    STRONG,
    WEAK,
    Scenario,
)
from commprof.forecast.scenario.schedule import Schedule
from commprof.forecast.sharded.replay import ShardedReplay
from commprof.forecast.sharded.steps import ShardedSteps
from commprof.forecast.what_if.answers import Answers, answer
from commprof.forecast.what_if.optimize import CHOICES
from commprof.launch.run_files import keep_text
from commprof.text import printable
from commprof.trace.run.run_directory import PREDICTIONS_FILE, read_context


class PredictCommand:
    """The command ``commprof predict``."""

    description = """\
Replays a recorded run's steps in another setting. The replay computes when gradients become ready,
how buckets queue for the link, and how much communication stays exposed. Step time, throughput,
efficiency, exposed and hidden communication have intervals; the other figures describe the median
step. The output also shows the model's error on recorded steps that the model was not fitted to, if
there are any. Settings outside the measured range are marked, and the assumptions are listed. A
setting is refused if its costs do not follow from measured costs.

  commprof predict RUN --world-size 16,64,256 --ranks-per-host 1 --bandwidth 25Gbps --latency 20us
  commprof predict RUN --bucket-cap-mb 5,25,100 --hook none,fp16
  commprof predict RUN --optimize bucket-cap,hook
  commprof predict RUN --world-size 8 --price-per-hour 2.50
  commprof predict FSDP_RUN --shard-ranks 4,8 --wrap-blocks 1,2 --gather-dtype bf16

Every combination of the values in comma-separated lists is predicted. See docs/prediction.md.
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "run", type=Path, metavar="RUN", help="the run directory, or traces of torch.profiler"
        )
        _add_setting(parser)
        parser.add_argument(
            "--optimize",
            metavar="WHAT,...",
            help=f"find the best setting of {', '.join(CHOICES)}",
        )
        parser.add_argument(
            "--price-per-hour",
            metavar="PRICE",
            help="price of one host for an hour; the answers then show the cost of training",
        )
        parser.add_argument(
            "--profile",
            type=Path,
            metavar="FILE",
            help=f"machine profile with fitted costs (default: {default_path()}; if this file does "
            "not exist, or is of another backend or link, the costs are fitted to the run's own "
            "collectives)",
        )
        parser.add_argument(
            "--from-world-size",
            type=int,
            metavar="N",
            help="recorded world size to start from (default: of those with 2 ranks or more, the "
            "largest with enough cores for its ranks; the smallest if all lack cores)",
        )
        parser.add_argument(
            "--check",
            type=Path,
            nargs="+",
            default=[],
            metavar="RUN",
            help="further runs on the same link, to measure the model's error",
        )
        parser.add_argument("--format", choices=("table", "json"), default="table")

    def run(self, args: argparse.Namespace) -> int:
        """Predicts, prints the answers, and saves them for the run's HTML page."""
        recorded, refused = read_recorded(args.run)
        base = base_of(recorded, args.from_world_size, refused)
        profile, source = _profile(args, recorded, base)
        replay = _model(base, profile, recorded)
        if args.optimize is not None and isinstance(replay, ShardedReplay):
            raise UsageError(
                "--optimize compares settings of DistributedDataParallel; for a sharded run give "
                "lists, such as --shard-ranks 2,4 --reshard-after-forward on,off"
            )
        others = [job for job in recorded if job is not base and job.schedule.world_size > 1]
        for directory in args.check:
            checked_with, reasons = read_recorded(directory)
            others += [job for job in checked_with if job.schedule.world_size > 1]
            refused += reasons
        context = read_context(args.run)
        answers = answer(
            replay,
            _scenarios(args, base.schedule.world_size),
            recorded,
            others,
            None if args.optimize is None else args.optimize.split(","),
            math.nan
            if args.price_per_hour is None
            else number("--price-per-hour", args.price_per_hour, 0),
        )
        best = answers.best
        how = None
        if best is not None:
            steps = base.schedule
            shard = None
            if isinstance(steps, ShardedSteps) and steps.shard_ranks < steps.world_size:
                shard = steps.shard_ranks
            how = tried(best.candidate.prediction.scenario, context, args.run, shard)
        _print(args, answers, base.name, source, refused, how)
        return 0


def _model(base: RecordedJob, profile: MachineProfile, recorded: list[RecordedJob]) -> Model:
    steps = base.schedule
    if isinstance(steps, ShardedSteps):
        return ShardedReplay(steps, profile)
    assert isinstance(steps, Schedule)
    return Replay(steps, profile, compute_by_batch(recorded, steps), batches(recorded, steps))


def _add_setting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--world-size", metavar="N,...", help="ranks (default: as recorded)")
    parser.add_argument("--bandwidth", metavar="RATE,...", help="rate of the link between hosts")
    parser.add_argument(
        "--latency", metavar="TIME,...", help="one-way latency of the link between hosts"
    )
    parser.add_argument(
        "--bucket-cap-mb",
        metavar="MB,...",
        help="DDP's bucket_cap_mb (default: buckets as recorded)",
    )
    parser.add_argument(
        "--hook",
        metavar="NAME,...",
        help="compressors whose costs the profile holds; 'none' means DDP's own all-reduce "
        "(default: as recorded)",
    )
    parser.add_argument("--ranks-per-host", metavar="N", help="default: as recorded")
    parser.add_argument(
        "--cores-per-host",
        metavar="X",
        help="cores of a host; may be a fraction, such as 3.5, if containers share cores "
        "(default: as recorded)",
    )
    parser.add_argument(
        "--scaling",
        choices=(WEAK, STRONG),
        default=WEAK,
        help="weak: the same batch per rank at every world size; strong: the same global batch "
        "(default: weak)",
    )
    parser.add_argument(
        "--algorithm",
        choices=ALGORITHMS,
        default=FLAT,
        help="all-reduce in one ring (flat), or within hosts, then between them (hierarchical); "
        "default: flat",
    )
    sharded = parser.add_argument_group("runs of FSDP2 or HSDP (default: as recorded)")
    sharded.add_argument(
        "--shard-ranks",
        metavar="N,...",
        help="number of ranks that share one copy of the model; HSDP if fewer than all ranks",
    )
    sharded.add_argument(
        "--wrap-blocks",
        metavar="N,...",
        help="number of neighbouring blocks (the run's fully_shard units) to wrap together",
    )
    sharded.add_argument(
        "--accumulate",
        metavar="N,...",
        help="backward passes per step; gradients are reduced in the last pass",
    )
    sharded.add_argument(
        "--reshard-after-forward", metavar="on,off", help="gather parameters again for backward"
    )
    for option, what in (
        ("gather", "parameters are gathered"),
        ("reduce", "gradients are reduced"),
    ):
        sharded.add_argument(
            f"--{option}-dtype",
            metavar="TYPE,...",
            help=f"type in which {what}: {', '.join(DTYPE_BYTES)}",
        )


def _scenarios(args: argparse.Namespace, recorded_world_size: int) -> list[Scenario]:
    hooks = [None] if args.hook is None else [_hook(word) for word in _hook_words(args.hook)]
    shared = _sharding(args)
    grid = itertools.product(
        listed("--world-size", args.world_size, whole, recorded_world_size),
        listed("--bandwidth", args.bandwidth, rate, math.nan),
        listed("--latency", args.latency, duration, math.nan),
        listed("--bucket-cap-mb", args.bucket_cap_mb, _cap_bytes, math.nan),
        hooks,
        *shared.values(),
    )
    per_host, cores = (
        math.nan if text is None else number(option, text, least)
        for option, text, least in (
            ("--ranks-per-host", args.ranks_per_host, 1),
            ("--cores-per-host", args.cores_per_host, 1e-3),
        )
    )
    return [
        Scenario(
            *(size, bandwidth, latency, cap, hook, per_host, cores, args.scaling, args.algorithm),
            **dict(zip(shared, values, strict=True)),
        )
        for size, bandwidth, latency, cap, hook, *values in grid
    ]


def _sharding(args: argparse.Namespace) -> dict[str, list[Any]]:
    switch = {"on": True, "off": False}
    again = listed("--reshard-after-forward", args.reshard_after_forward, _one_of(switch), None)
    dtype = _one_of(DTYPE_BYTES)
    return {
        "gather_dtype": listed("--gather-dtype", args.gather_dtype, dtype, None),
        "reduce_dtype": listed("--reduce-dtype", args.reduce_dtype, dtype, None),
        "reshard_after_forward": [None if word is None else switch[word] for word in again],
        "shard_ranks": listed("--shard-ranks", args.shard_ranks, whole, None),
        "wrap_blocks": listed("--wrap-blocks", args.wrap_blocks, whole, None),
        "accumulate": listed("--accumulate", args.accumulate, whole, None),
    }


def _one_of(allowed: Iterable[str]) -> Callable[[str, str], str | None]:
    words = [*allowed]

    def read(option: str, text: str) -> str | None:
        if text not in words:
            raise UsageError(f"{option} {text!r} is unknown (allowed: {', '.join(words)})")
        return text

    return read


def _cap_bytes(option: str, text: str) -> float:
    """Reads a number of MiB, and returns bytes."""
    return number(option, text, 0) * (1 << 20)


def _hook_words(text: str) -> list[str]:
    """Splits a list of hooks at commas, but not between the options of one hook."""
    words: list[str] = []
    for word in text.split(","):
        if words and "=" in word and ":" not in word:
            words[-1] += f",{word}"
        else:
            words.append(word)
    return words


def _hook(word: str) -> str:
    """Returns the compressor's name; "" for ``none``, which means DDP's own all-reduce.

    With a colon, ``none:`` means the compressor named ``none``.
    """
    return "" if word.strip() == "none" else word.strip().rstrip(":")


def _profile(
    args: argparse.Namespace, recorded: list[RecordedJob], base: RecordedJob
) -> tuple[MachineProfile, str]:
    """Returns the costs, and a description of their source.

    A profile that the user names is always used. If the default profile does not exist, or is of
    another backend or link, the costs are fitted to the recorded job.
    """
    path = args.profile or default_path()
    unlike = ""
    if args.profile is not None or path.exists():
        profile = load_profile(path)
        if args.profile is None:
            unlike = profile.unlike(base.schedule.link, base.schedule.backend)
        if not unlike:
            return profile, _source(profile, path)
    try:
        fitted = build_profile([], recorded, [str(args.run)])[0]
    except CommprofError as error:
        missing = (
            f"the machine profile {invocation.quoted(path)} {unlike}"
            if unlike
            else f"no machine profile at {invocation.quoted(path)}"
        )
        raise CommprofError(f"{missing}, and {error}") from None
    source = "the run's own collectives"
    if unlike:
        source += f" (the profile {invocation.quoted(path)} {unlike})"
    return fitted, source


def _source(profile: MachineProfile, path: Path) -> str:
    source = f"machine profile {invocation.quoted(path)}, of {profile.created}"
    if not profile.sources:
        return source
    more = len(profile.sources) - 1
    also = f" and {more} more" if more else ""
    return f"{source}, fitted to {invocation.quoted(profile.sources[0])}{also}"


def _print(
    args: argparse.Namespace,
    answers: Answers,
    base: str,
    source: str,
    refused: list[str],
    how: Tried | None,
) -> None:
    tried_by = None if how is None else dataclasses.asdict(how)
    document = prediction_json.render(answers, base, source, refused, tried_by)
    if args.format == "json":
        print(document, end="")
    else:
        widths = prose_width(), table_width()
        print(prediction_table.render(answers, base, source, refused, *widths), end="")
        if answers.best is not None and how is not None:
            best = answers.best
            said = prediction_best.render(best, answers.error, how.in_script, how.command)
            print(f"\n{said}", end="")
    kept = args.run / PREDICTIONS_FILE
    if not args.run.is_file() and keep_text(kept, document):
        page = invocation.command("report", invocation.quoted(args.run), "--format", "html")
        said = f"commprof: wrote {kept}; to see the predictions in a report, run: {page}"
        print(printable(said), file=sys.stderr)
