"""Interfaces between the profiler and its satellites.

A satellite is a package with further tools. The profiler works without satellites. Each satellite
has a module ``seam``, which implements a protocol below and must be fast to import. Other modules
of the profiler must not import a satellite.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from commprof.errors import UsageError

#: Function that returns the time of an operation's call in seconds; NaN if not measured.
#: Arguments: name of the operation, bytes, number of ranks, and True if all ranks are on one host.
ExpectedTime = Callable[[str, int, int, bool], float]

#: Purpose of each satellite, as the end of a sentence.
NAMES = {
    "audit": "which audits scaling reports",
    "forecast": "which predicts runs and measures collectives in microbenchmarks",
    "tune": "which holds compressors, trials and the backend commprof",
}


#: The satellite that provides each of these public names of commprof.
PUBLIC_NAMES = {"Trial": "tune", "compressors": "tune", "trial": "tune"}


class AddedReport(Protocol):
    """A satellite's report on a run, which replaces the usual report."""

    @property
    def key(self) -> str:
        """Key of the report's figures in the JSON result."""

    @property
    def table_name(self) -> str:
        """Name of the report's table, for ``--rows``."""

    def plain(self) -> dict[str, Any]:
        """Returns the report's figures for the JSON result."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of the report's table; all have the same columns."""

    def section(self) -> Any:
        """Returns the report as a ``commprof.report.section.Section``."""

    def pictures(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the data of each picture, by the picture's name in the page's scripts."""

    def screen(self, description: str, all_command: str, caveats: int) -> str:
        """Renders at most 24 lines of 80 columns.

        Args:
            description: text about the run.
            all_command: command that prints the full report.
            caveats: number of caveats in the full report.
        """

    def text(self, description: str, width: int, caveats: list[str], tables: int | None) -> str:
        """Renders the whole report for the terminal.

        Args:
            description: text about the run.
            width: number of characters at which prose is wrapped.
            caveats: sentences about the run.
            tables: width in characters at which tables are split; None splits no table.
        """


class Commands(Protocol):
    """Commands of a satellite, in its module ``seam``."""

    #: By the name of each command: its help line, and the class that runs it, as ``module:class``.
    COMMANDS: Mapping[str, tuple[str, str]]
    #: Lines about the commands for the overview in ``commprof --help``.
    OVERVIEW: str


class Forecast(Commands, Protocol):
    """Functions that the satellite for predictions gives to the profiler."""

    def expected_times(self, path: Path) -> ExpectedTime:
        """Returns a function that predicts times from a machine profile.

        Raises:
            CommprofError: ``path`` is not a machine profile.
        """


class Tune(Commands, Protocol):
    """Functions that the satellite for compressors and trials gives to the profiler."""

    def public_name(self, name: str) -> Any:
        """Returns the object that this satellite provides under one of ``PUBLIC_NAMES``."""

    def sharding(self) -> ModuleType:
        """Returns the module that parses the text of FSDP2's settings."""

    def parse_hook(self, text: str) -> Any:
        """Returns the compressor for a text such as ``topk:ratio=0.01``.

        Raises:
            UsageError: there is no such compressor, or an option is out of range.
        """

    def exchanges(self) -> Mapping[str, str]:
        """Returns the way in which ranks exchange a bucket, by the compressor's name.

        The values are "two_phase", "gather", "ring" and "hierarchical".
        """

    def run_help(self) -> str:
        """Returns the help text of ``commprof run`` about compressors and trials."""

    def parse_trial(self, text: str) -> Any:
        """Returns the plan of a trial; raises UsageError if ``text`` describes no trial."""

    def set_every_model(self, sharding: str, profiler: Any) -> None:
        """Applies a setting permanently to the FSDP2 models of this process."""

    def try_every_model(self, trial: str, profiler: Any) -> None:
        """Prepares one trial for all models of this process together."""

    def try_model(self, model: Any, trial: str) -> None:
        """Starts a trial in a model."""

    def register_backend(self) -> None:
        """Registers the backend ``commprof`` with torch."""

    def recorded_trial(self, run: Any, context: Mapping[str, Any]) -> AddedReport | None:
        """Returns the report of the trial that took place in a run's steps.

        ``run`` is the ``WorldRun``; ``context`` is the content of ``run.json``.
        """

    def no_trial(self, directory: Path) -> str:
        """Returns the reason why no trial began in a run, as the end of a sentence."""


def forecast() -> Forecast:
    """Returns the module ``seam`` of the package for predictions.

    Raises:
        UsageError: the package is not installed.
    """
    return cast(Forecast, _needed("forecast"))


def tune() -> Tune:
    """Returns the module ``seam`` of the package for compressors and trials.

    Raises:
        UsageError: the package is not installed.
    """
    return cast(Tune, _needed("tune"))


def tune_if_there() -> Tune | None:
    """Returns what :func:`tune` returns; None if the package is not installed."""
    return cast(Tune | None, _seam("tune"))


def public_name(name: str) -> Any:
    """Returns the object that a satellite provides under one of ``PUBLIC_NAMES``.

    Raises:
        AttributeError: the satellite is not installed.
    """
    seam = _seam(PUBLIC_NAMES[name])
    if seam is None:
        raise AttributeError(f"commprof.{name}: {_lacks(PUBLIC_NAMES[name])}")
    return seam.public_name(name)


def all_commands() -> Iterator[Commands]:
    """Yields the module ``seam`` of each installed satellite."""
    for name in NAMES:
        if (seam := _seam(name)) is not None:
            yield cast(Commands, seam)


def _needed(name: str) -> ModuleType:
    seam = _seam(name)
    if seam is None:
        raise UsageError(_lacks(name))
    return seam


def _lacks(name: str) -> str:
    return (
        f"this needs the package commprof.{name}, {NAMES[name]}; this installation of commprof "
        "lacks it: install the full commprof package"
    )


@cache
def _seam(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"commprof.{name}.seam")
    except ModuleNotFoundError as error:
        if error.name not in (f"commprof.{name}", f"commprof.{name}.seam"):
            raise
        return None
