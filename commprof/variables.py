"""The environment variables of commprof, except those of setup.py.

``docs/your_job.md`` has the same table. An empty value counts as unset. The C++ code reads
``DEVICE_EVENTS``, ``NCCL``, ``NCCL_PLUGIN``, ``SIMD`` and ``KERNEL_THREADS`` itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Variable(str):
    """Name of an environment variable, with its meaning, default and allowed values."""

    meaning: str
    #: The allowed values, as a text that follows "allowed: ".
    allowed: str
    parse: Callable[[str], Any]
    #: Value if the variable is unset or empty.
    default: Any

    def __new__(
        cls,
        name: str,
        meaning: str,
        allowed: str,
        parse: Callable[[str], Any] = str,
        default: Any = "",
    ) -> Variable:
        """Makes a variable; ``parse`` raises ValueError for a text that is not allowed."""
        made = super().__new__(cls, name)
        made.meaning, made.allowed, made.parse, made.default = meaning, allowed, parse, default
        return made

    def value(self, environment: Mapping[str, str] | None = None) -> Any:
        """Returns the value in ``environment``, by default the environment of this process.

        Raises:
            ValueError: the value is not allowed.
        """
        text = (os.environ if environment is None else environment).get(self, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise ValueError(
                f"{self}={text!r} is not valid (allowed: {self.allowed}); correct it, or unset "
                "the variable"
            ) from None

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickles only the name, as a plain string."""
        return str, (str(self),)

    def text(self, value: Any) -> str:
        """Converts a value to a text that ``value()`` can read."""
        if isinstance(value, float):
            return f"{value:g}"
        return str(int(value)) if isinstance(value, bool) else str(value)


def table() -> Iterator[Variable]:
    """Yields all variables."""
    return (value for value in globals().values() if isinstance(value, Variable))


def _choice(name: str, meaning: str, *words: str, default: str | None = None) -> Variable:
    """Makes a variable that allows only ``words``. The first word is the usual default."""
    default = words[0] if default is None else default
    return Variable(name, meaning, ", ".join(words), lambda text: words[words.index(text)], default)


def _steps(name: str, meaning: str, least: int, allowed: str) -> Variable:
    return Variable(name, meaning, allowed, lambda text: _whole(text, least, 2**63 - 1), 0)


def _whole(text: str, least: int, most: int) -> int:
    # int() also reads digits of other writing systems, and refuses numbers of thousands of digits.
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else least - 1
    return int(_within(number, least, most))


def _within(number: float, least: float, most: float) -> float:
    if not least <= number <= most:
        raise ValueError
    return number


_LARGEST = math.nextafter(math.inf, 0)

OUT = Variable(
    "COMMPROF_OUT",
    "directory for traces; if unset, a script without commprof calls is not recorded",
    "a directory",
)
MODE = _choice(
    *("COMMPROF_MODE", "mode in which recording begins"),
    *("off", "always-on", "full"),
    default="full",
)
SIGNAL = _choice(
    *("COMMPROF_SIGNAL", "signal that switches to the next mode"),
    *("SIGUSR2", "SIGUSR1", "none"),
)
STACKS = Variable(
    "COMMPROF_STACKS",
    "1 records the Python frames that issue each collective",
    "0, 1",
    lambda text: bool(("0", "1").index(text)),
    False,
)
CLOCK = _choice(
    "COMMPROF_CLOCK",
    "ranks that compare clocks with rank 0; auto: ranks that do not share rank 0's clock; always: "
    "all ranks; off: no rank",
    *("auto", "always", "off"),
)
GRADIENT_NORMS = _steps(
    "COMMPROF_GRADIENT_NORMS",
    "number of steps between two measurements of the gradients' norms",
    0,
    "0 for never, or a number of steps",
)
CHECK_SYNC = _steps(
    "COMMPROF_CHECK_SYNC",
    "number of steps between two comparisons of all ranks' models; unset for never",
    1,
    "1 or more steps",
)
BUCKET_CAP_MB = Variable(
    "COMMPROF_BUCKET_CAP_MB",
    "bucket cap of every DDP model for which the script sets none",
    "MiB above 0",
    lambda text: _within(float(text), math.nextafter(0, 1), _LARGEST),
    None,
)
FSDP = Variable(
    "COMMPROF_FSDP",
    "setting that every FSDP2 model gets from the third step on, such as prefetch=2",
    "values of `--fsdp`",
)
HOOK = Variable("COMMPROF_HOOK", "gradient compressor of every DDP model", "values of `--hook`")
TRIAL = Variable(
    "COMMPROF_TRIAL",
    "candidates that a trial compares; they take turns on every model",
    "values of `--trial`",
)
METRICS = Variable(
    "COMMPROF_METRICS",
    "starts live metrics with these options, in a script without commprof calls",
    "the `--metrics` options",
)
WATCHDOG = Variable(
    "COMMPROF_WATCHDOG",
    "in a script without commprof calls: time after which the watchdog reports a hung step or "
    "collective",
    "auto, or seconds above 0",
)
NATIVE = _choice(
    "COMMPROF_NATIVE", "0: commprof records in Python and does not load the C++ module", "1", "0"
)
DEVICE_EVENTS = _choice(
    "COMMPROF_DEVICE_EVENTS",
    "whether collectives on a GPU or other device are timed with the device's events; if unset, "
    "events are used only if the device's backend can report the capture of a stream into a graph",
    *("on", "off"),
    default="",
)
NCCL = _choice(
    "COMMPROF_NCCL",
    "what NCCL's profiler plugin records; off: nothing; operations: NCCL's operations; kernels: "
    "also their times on the GPU; network: also the transfers between hosts; "
    "auto: kernels, but operations from NCCL 2.31 on",
    *("auto", "off", "operations", "kernels", "network"),
)
NCCL_PLUGIN = Variable(
    "COMMPROF_NCCL_PLUGIN",
    "set by commprof from `NCCL_PROFILER_PLUGIN`: the user's profiler plugin; commprof's plugin "
    "passes NCCL's calls on to the user's plugin",
    "a name or path, as in `NCCL_PROFILER_PLUGIN`",
)
SIMD = Variable(
    "COMMPROF_SIMD",
    "instruction set of the compression kernels; if unset, the best available",
    "scalar, avx2, avx512",
)
KERNEL_THREADS = Variable(
    "COMMPROF_KERNEL_THREADS", "threads of the compression kernels", "1 to 256", default="1"
)
SOCKETS = _choice(
    "COMMPROF_SOCKETS",
    "whether compressors send messages over commprof's own TCP connections; off: over gloo",
    *("on", "off"),
)
HOST = Variable(
    "COMMPROF_HOST", "name of this rank's host for the process-group backend `commprof`", "any name"
)
CHECK_TIMEOUT_S = Variable(
    "COMMPROF_CHECK_TIMEOUT_S",
    "longest time that a rank of `commprof check` waits for another rank, in seconds",
    "1 to 86400",
    lambda text: _within(float(text), 1, 86_400),
    60.0,
)
CPUS = Variable(
    "COMMPROF_CPUS",
    "set by `commprof run`: CPUs of each local rank",
    "such as 0-1/2,3 for two ranks",
)
PTRACER = Variable(
    "COMMPROF_PTRACER",
    "set by `commprof run`: the process whose descendants may read the ranks' stacks",
    "a process ID above 0",
    lambda text: _whole(text, 1, 2**31 - 1),
    None,
)
