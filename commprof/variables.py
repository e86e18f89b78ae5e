"""Every environment variable of commprof: its name, what it may hold and what it is for.

``docs/your_job.md`` has the same table. An empty value counts as unset everywhere. The C++ code
reads ``DEVICE_EVENTS``, ``SIMD`` and ``KERNEL_THREADS`` itself; setup.py's own variables are in
setup.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Variable(str):
    """Name of an environment variable, with its meaning, default and allowed values."""

    meaning: str
    #: What it may hold, in words that follow "allowed: ".
    allowed: str
    parse: Callable[[str], Any]
    #: What it stands for where it is unset or empty.
    default: Any

    def __new__(
        cls,
        name: str,
        meaning: str,
        allowed: str,
        parse: Callable[[str], Any] = str,
        default: Any = "",
    ) -> Variable:
        """``parse`` raises ValueError for a text that means nothing."""
        made = super().__new__(cls, name)
        made.meaning, made.allowed, made.parse, made.default = meaning, allowed, parse, default
        return made

    def value(self, environment: Mapping[str, str] | None = None) -> Any:
        """Returns the variable's value, in this process's environment if none is given.

        Raises:
            ValueError: names the variable, its text and what is allowed.
        """
        text = (os.environ if environment is None else environment).get(self, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise ValueError(
                f"{self}={text!r} means nothing (allowed: {self.allowed}); correct it, or leave "
                "it out"
            ) from None

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Other processes get the name alone."""
        return str, (str(self),)

    def text(self, value: Any) -> str:
        """Converts a value to the text from which ``value()`` makes it."""
        if isinstance(value, float):
            return f"{value:g}"
        return str(int(value)) if isinstance(value, bool) else str(value)


def table() -> Iterator[Variable]:
    """Yields all variables."""
    return (value for value in globals().values() if isinstance(value, Variable))


def _choice(name: str, meaning: str, *words: str, default: str | None = None) -> Variable:
    """A variable that holds one of the words, the first of them if no default is named."""
    default = words[0] if default is None else default
    return Variable(name, meaning, ", ".join(words), lambda text: words[words.index(text)], default)


def _steps(name: str, meaning: str, least: int, allowed: str) -> Variable:
    return Variable(name, meaning, allowed, lambda text: _whole(text, least, 2**63 - 1), 0)


def _whole(text: str, least: int, most: int) -> int:
    # Python refuses to read numbers of more digits, and reads others than these.
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else least - 1
    return int(_within(number, least, most))


def _within(number: float, least: float, most: float) -> float:
    if not least <= number <= most:
        raise ValueError
    return number


_LARGEST = math.nextafter(math.inf, 0)

OUT = Variable(
    "COMMPROF_OUT", "where traces go; without it an unchanged script is not recorded", "a directory"
)
MODE = _choice(
    *("COMMPROF_MODE", "mode that recording begins in"),
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
    *("COMMPROF_CLOCK", "which ranks compare clocks: those that do not share one, all, or none"),
    *("auto", "always", "off"),
)
GRADIENT_NORMS = _steps(
    "COMMPROF_GRADIENT_NORMS",
    "every how many steps the norms of the gradients are measured",
    0,
    "0 for never, or a number of steps",
)
CHECK_SYNC = _steps(
    "COMMPROF_CHECK_SYNC",
    "every how many steps the models of all ranks are compared; unset for never",
    1,
    "1 or more steps",
)
BUCKET_CAP_MB = Variable(
    "COMMPROF_BUCKET_CAP_MB",
    "bucket cap of every DDP model that names none",
    "MiB above 0",
    lambda text: _within(float(text), math.nextafter(0, 1), _LARGEST),
    None,
)
FSDP = Variable("COMMPROF_FSDP", "setting of every FSDP2 model", "as `--fsdp` takes it")
HOOK = Variable("COMMPROF_HOOK", "compressor of every DDP model", "as `--hook` takes it")
TRIAL = Variable(
    "COMMPROF_TRIAL",
    "candidates that take turns on every model",
    "as `--trial` takes them",
)
METRICS = Variable(
    "COMMPROF_METRICS", "live metrics of an unchanged script", "the `--metrics` options"
)
WATCHDOG = Variable(
    "COMMPROF_WATCHDOG", "threshold of a watchdog beside an unchanged script", "auto, or seconds"
)
NATIVE = _choice(
    "COMMPROF_NATIVE", "0 records by the Python capture although the module fits", "1", "0"
)
DEVICE_EVENTS = _choice(
    "COMMPROF_DEVICE_EVENTS",
    "whether collectives of devices are timed by events of the device; unset where it is safe",
    *("on", "off"),
    default="",
)
SIMD = Variable(
    "COMMPROF_SIMD",
    "instruction set of the compression kernels; unset for the best",
    "scalar, avx2, avx512",
)
KERNEL_THREADS = Variable(
    "COMMPROF_KERNEL_THREADS", "threads of the compression kernels", "1 to 256", default="1"
)
SOCKETS = _choice(
    "COMMPROF_SOCKETS", "whether compressors connect ranks by sockets of their own", "on", "off"
)
HOST = Variable(
    "COMMPROF_HOST", "host that the backend `commprof` takes this rank to be on", "any name"
)
CHECK_TIMEOUT_S = Variable(
    "COMMPROF_CHECK_TIMEOUT_S",
    "seconds that one check of `commprof check` may take",
    "1 to 86400",
    lambda text: _within(float(text), 1, 86_400),
    60.0,
)
CPUS = Variable(
    "COMMPROF_CPUS", "set by `commprof run`: CPUs by local rank", "such as 0-1/2,3 for two ranks"
)
PTRACER = Variable(
    "COMMPROF_PTRACER",
    "set by `commprof run`: process whose descendants may read the ranks' stacks",
    "a process ID above 0",
    lambda text: _whole(text, 1, 2**31 - 1),
    None,
)
