"""Settings of the live metrics, and the command-line options for them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from commprof import variables
from commprof.errors import UsageError
from commprof.monitor.metrics.endpoint import parse_address

DEFAULT_ADDRESS: Final = "127.0.0.1:9470"
_INTERVAL_S: Final = 2.0


@dataclass(frozen=True)
class Settings:
    """Settings of one monitor.

    Raises:
        UsageError: the address or the interval is not valid.
    """

    #: HOST:PORT at which metrics are served; empty if they are not served.
    address: str = ""
    textfile: Path | None = None
    jsonl: Path | None = None
    tensorboard: Path | None = None
    profile: Path | None = None
    interval_s: float = _INTERVAL_S

    def __post_init__(self) -> None:
        if self.address:
            parse_address(self.address)
        if not 0.2 <= self.interval_s <= 3600:
            raise UsageError(
                f"--metrics-interval {self.interval_s:g} is out of range (allowed: 0.2 to 3600 s)"
            )

    @property
    def wanted(self) -> bool:
        """True if any output is chosen."""
        return bool(self.address or self.textfile or self.jsonl or self.tensorboard)

    def arguments(self) -> list[str]:
        """Returns the command-line options that give these settings."""
        given: list[tuple[str, object]] = [
            ("--metrics-address", self.address),
            ("--metrics-textfile", self.textfile and self.textfile.absolute()),
            ("--metrics-jsonl", self.jsonl and self.jsonl.absolute()),
            ("--metrics-tensorboard", self.tensorboard and self.tensorboard.absolute()),
            ("--metrics-profile", self.profile and self.profile.absolute()),
            ("--metrics-interval", f"{self.interval_s:g}"),
        ]
        return [word for name, value in given if value for word in (name, str(value))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that make up :class:`Settings`."""
    group = parser.add_argument_group("live metrics (docs/monitoring.md)")
    group.add_argument(
        "--metrics",
        action="store_true",
        help=f"serve metrics of the running job to Prometheus, on {DEFAULT_ADDRESS}",
    )
    group.add_argument(
        "--metrics-address",
        metavar="HOST:PORT",
        help="like --metrics, but on this address; port 0 chooses a free port; metrics_*.json in "
        "the run directory then holds the port",
    )
    group.add_argument(
        "--metrics-textfile",
        type=Path,
        metavar="FILE",
        help="write metrics to FILE, for node_exporter's textfile collector",
    )
    group.add_argument(
        "--metrics-jsonl", type=Path, metavar="FILE", help="append metrics to FILE as JSON lines"
    )
    group.add_argument(
        "--metrics-tensorboard", type=Path, metavar="DIR", help="write scalars for TensorBoard"
    )
    group.add_argument(
        "--metrics-profile",
        type=Path,
        metavar="FILE",
        help="compare bandwidth with the machine profile in FILE, which commprof fit made",
    )
    group.add_argument(
        "--metrics-interval",
        type=float,
        default=_INTERVAL_S,
        metavar="S",
        help=f"shortest time in seconds between two readings of the job (default: {_INTERVAL_S:g})",
    )


def settings_of(args: argparse.Namespace) -> Settings:
    """Makes settings from parsed arguments.

    Raises:
        UsageError: a value is not valid.
    """
    return Settings(
        address=args.metrics_address or (DEFAULT_ADDRESS if args.metrics else ""),
        textfile=args.metrics_textfile,
        jsonl=args.metrics_jsonl,
        tensorboard=args.metrics_tensorboard,
        profile=args.metrics_profile,
        interval_s=args.metrics_interval,
    )


def settings_of_variable(text: str) -> Settings:
    """Reads settings from the value of COMMPROF_METRICS.

    Raises:
        UsageError: the value is not valid.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{variables.METRICS}: {error}") from None
    return parse(words)


def parse(words: Sequence[str]) -> Settings:
    """Makes settings from ``--metrics`` options.

    Raises:
        UsageError: an option is unknown, or a value is not valid.
    """
    parser = _Parser(prog=variables.METRICS, add_help=False, allow_abbrev=False)
    add_arguments(parser)
    return settings_of(parser.parse_args(words))


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (allowed: the --metrics options of commprof run)")
