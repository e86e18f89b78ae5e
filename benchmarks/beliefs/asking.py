"""Tests statements about torch, called beliefs, with one version of torch.

    PYTHON -m benchmarks.beliefs.asking [NAME ...]

Needs only torch and the standard library, so that any interpreter that has torch can run it. Prints
one JSON object: {"torch": version, "answers": {belief: answer}}. The question of a belief runs in
new processes, which have a process group of gloo. If the question raises an error or takes too
long, this fact is the answer.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

#: Modules of this package that hold beliefs, in the order of docs/pytorch_really.md.
TOPICS = ("gloo", "groups", "ddp", "sharding", "functional", "recorders")
#: Modules that questions use. They are imported once, before the ranks are forked.
_COMMON = (
    *("torch.profiler", "torch._dynamo", "torch.nn.parallel", "torch.distributed.tensor.parallel"),
    *("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.pipelining"),
    *("torch.distributed.optim", "torch.distributed.checkpoint.state_dict"),
)
#: Factor of all time limits; above 1 for a busy machine.
PATIENCE = float(os.environ.get("BELIEF_PATIENCE", "1"))
#: Time limit of a question.
LONGEST_S = 90 * PATIENCE


@dataclass(frozen=True)
class Belief:
    """A statement about torch that an engineer of this field would make from memory."""

    name: str
    topic: str
    guess: str
    """The statement, written down before it was tested."""
    expected: str
    """The answer of ``ask`` if the statement holds."""
    where: str
    """File of commprof that depends on the statement; empty if no file does."""
    ask: Callable[[], str]
    """Runs on every rank, and returns this rank's answer."""
    ranks: int
    environment: dict[str, str]
    starts_group: bool
    """False if ``ask`` makes the default process group itself."""
    only_from: tuple[int, int]
    """First version of torch (major, minor) that has the feature."""

    @property
    def line(self) -> str:
        """File and line of the question."""
        code = inspect.unwrap(self.ask).__code__
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


_beliefs: dict[str, Belief] = {}


def belief(
    guess: str,
    expected: str,
    where: str = "",
    *,
    ranks: int = 2,
    starts_group: bool = True,
    only_from: tuple[int, int] = (2, 0),
    **environment: str,
) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Returns a decorator that makes a belief of a question; see :class:`Belief`."""

    def keep(ask: Callable[[], str]) -> Callable[[], str]:
        name, topic = ask.__name__, ask.__module__.rpartition(".")[2]
        assert name not in _beliefs, name
        _beliefs[name] = Belief(
            *(name, topic, guess, expected, where, ask, ranks),
            *(environment, starts_group, only_from),
        )
        return ask

    return keep


def beliefs() -> dict[str, Belief]:
    """Returns all beliefs by name, in the order of their topics."""
    for topic in TOPICS:
        importlib.import_module(f"benchmarks.beliefs.{topic}")
    return _beliefs


def counted(names: Iterable[str]) -> str:
    """Returns how often each name occurs, such as "2 a, b"; "nothing" if there are no names."""
    counts = Counter(names)
    parts = (f"{count} {name}" if count > 1 else name for name, count in counts.items())
    return ", ".join(parts) or "nothing"


def _events(call: Callable[[], Any], prefix: str) -> list[str]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        call()
    events = sorted(recorded.events(), key=lambda event: event.time_range.start)
    return [event.name.removeprefix("c10d::") for event in events if event.name.startswith(prefix)]


def operators(call: Callable[[], Any]) -> str:
    """Returns which c10d operators a call issues on this thread, and how often."""
    return counted(_events(call, "c10d::"))


def ranges(call: Callable[[], Any]) -> str:
    """Returns which ranges of gloo torch.profiler records during a call, and how often."""
    return counted(_events(call, "gloo:"))


def outcome(call: Callable[[], Any]) -> str:
    """Returns "works", or the type and the first line of the exception."""
    try:
        call()
    except BaseException as error:  # CheckpointException does not derive from Exception
        return _named(error)
    return "works"


def _named(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    text = lines[0].rpartition("] ")[2] if lines[0].startswith("[") else lines[0]
    # Removes paths of the machine on which torch was built.
    text = text.partition(' at "/')[0].partition(" with [/")[0]
    return f"{type(error).__name__}: {text[:80]}".rstrip(" :")


def _answer(question: Belief, rank: int, store: str, results: Path) -> None:
    """Writes this rank's answer to a file; runs in a forked process."""
    os.environ.update(question.environment)
    # gloo's threads also need a core, because they end the ranges that torch.profiler records.
    torch.set_num_threads(1)
    dist.set_debug_level_from_env()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(question.ranks), LOCAL_RANK=str(rank))
    os.environ.update(COMMPROF_BELIEF_STORE=store)
    try:
        if question.starts_group:
            start_group()
        told = question.ask()
    except BaseException as error:
        told = _named(error)
        if os.environ.get("BELIEF_TRACEBACK"):
            traceback.print_exc()
    (results / str(rank)).write_text(told)
    with suppress(Exception):  # other ranks may need this rank for their answers
        dist.barrier()


def start_group(**options: Any) -> None:
    """Makes the default process group of the ranks; the default backend is gloo."""
    options = {"backend": "gloo", "timeout": timedelta(seconds=10 * PATIENCE), **options}
    dist.init_process_group(
        **options,
        init_method=f"file://{os.environ['COMMPROF_BELIEF_STORE']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


def _asked(question: Belief) -> str:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "told"
        results.mkdir()
        children = []
        for rank in range(question.ranks):
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    quiet = os.open(os.devnull, os.O_WRONLY)
                    if not os.environ.get("BELIEF_TRACEBACK"):
                        os.dup2(quiet, 2)
                    os.dup2(quiet, 1)
                    _answer(question, rank, f"{folder}/store", results)
                os._exit(0)  # without waiting for gloo's threads
            children.append(child)
        ended = _ends(children)
        told = {
            rank: (results / str(rank)).read_text()
            for rank in range(question.ranks)
            if (results / str(rank)).exists()
        }
    lost = [rank for rank in range(question.ranks) if rank not in told]
    for rank in lost:
        told[rank] = "ends by a signal" if ended else "does not end"
    if len(set(told.values())) == 1:
        return told[0]
    return "; ".join(f"rank {rank}: {told[rank]}" for rank in sorted(told))


def _ends(children: list[int]) -> bool:
    """Waits for the children; kills those that take too long, and then returns False."""
    until = time.monotonic() + LONGEST_S
    left = set(children)
    while left and time.monotonic() < until:
        left -= {child for child in left if os.waitpid(child, os.WNOHANG)[0]}
        time.sleep(0.01)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return not left


def version() -> tuple[int, int]:
    """Returns torch's major and minor version."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def main(names: list[str]) -> int:
    """Tests all beliefs, or the named ones; the answer "-" means that torch is too old."""
    every = beliefs()
    if unknown := set(names) - set(every):
        print(f"no belief is named {', '.join(sorted(unknown))}; names: {', '.join(every)}")
        return 2
    for module in _COMMON:
        with suppress(ImportError):
            importlib.import_module(module)
    answers = {}
    for name, question in every.items():
        if not names or name in names:
            answers[name] = _asked(question) if version() >= question.only_from else "-"
            print(f"{name}: {answers[name]}", file=sys.stderr, flush=True)
    print(json.dumps({"torch": torch.__version__, "answers": answers}))
    return 0


if __name__ == "__main__":
    # The topics add their beliefs to the copy of this module that is not called __main__.
    sys.exit(importlib.import_module("benchmarks.beliefs.asking").main(sys.argv[1:]))
