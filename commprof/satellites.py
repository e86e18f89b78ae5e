"""Interfaces between the profiler and its satellites, the tools around it.

The profiler works without satellites: each is a package of its own, which can be left out. Each
package has a module ``seam``, with the functions of a protocol below, the package's commands, and
nothing that takes long to import. Of the profiler's modules, only this one may import a satellite.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from commprof.errors import UsageError

#: Function that returns the time in seconds of one call of an operation; NaN if it was not
#: measured. Its arguments: the operation's name, bytes, ranks, and True if all ranks are on one
#: host.
ExpectedTime = Callable[[str, int, int, bool], float]

#: Each satellite's package, and its purpose as the end of a sentence.
NAMES = {
    "audit": "which audits scaling reports",
    "forecast": "which predicts runs and measures collectives in microbenchmarks",
    "tune": "which holds compressors, trials and the backend commprof",
}


#: For each public name of commprof that a satellite provides, the name of that satellite.
PUBLIC_NAMES = {"Trial": "tune", "compressors": "tune", "trial": "tune"}


class AddedReport(Protocol):
    """A satellite's report on a run; shown in place of means over all of the run's steps."""

    @property
    def key(self) -> str:
        """Key of the report's figures in the JSON result."""

    @property
    def table_name(self) -> str:
        """Name of the report's table, as ``--rows`` takes it."""

    def plain(self) -> dict[str, Any]:
        """Returns the report's figures for the JSON result."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of the report's table; all have the same columns."""

    def section(self) -> Any:
        """Returns the report as a ``commprof.report.section.Section``."""

    def pictures(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the data of the report's pictures, by the names that the page's scripts use."""

    def screen(self, description: str, all_command: str, caveats: int) -> str:
        """Renders at most 24 lines of 80 columns.

        Args:
            description: text on the run.
            all_command: command that prints the full report.
            caveats: number of caveats on the run in the full report.
        """

    def text(self, description: str, width: int, caveats: list[str], tables: int | None) -> str:
        """Renders the whole report for the terminal.

        Args:
            description: text on the run.
            width: number of characters at which prose is wrapped.
            caveats: sentences about the run.
            tables: number of characters at which tables are split; None: never.
        """


class Commands(Protocol):
    """The part of the module ``seam`` that every satellite's package has: its commands."""

    #: By the name of each command as typed: its help line, and ``module:class`` that runs it.
    COMMANDS: Mapping[str, tuple[str, str]]
    #: The commands in the overview of ``commprof --help``, a line for each.
    OVERVIEW: str


class Forecast(Commands, Protocol):
    """Functions that the satellite for predictions gives to the profiler."""

    def expected_times(self, path: Path) -> ExpectedTime:
        """Returns the function that gives the times that a machine profile predicts.

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
        """Returns the compressor that a text such as ``topk:ratio=0.01`` names.

        Raises:
            UsageError: there is no such compressor, or an option is out of range.
        """

    def exchanges(self) -> Mapping[str, str]:
        """Returns how each compressor's ranks exchange a bucket, by the compressor's name.

        The values are "two_phase", "gather", "ring" and "hierarchical".
        """

    def run_help(self) -> str:
        """Returns the part of ``commprof run``'s help on compressors and trials."""

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
        """Returns the report of the trial that ran in the steps of one world size.

        ``run`` is this world size's ``WorldRun``, ``context`` the content of ``run.json``.
        """

    def no_trial(self, directory: Path) -> str:
        """Returns why no trial began in a run that should have one, as the end of a sentence."""


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
    """Returns the module ``seam`` of the package for compressors and trials.

    None if the package is not installed.
    """
    return cast(Tune | None, _seam("tune"))


def public_name(name: str) -> Any:
    """Returns the object that a satellite provides under one of ``PUBLIC_NAMES``.

    Raises:
        AttributeError: the satellite is not installed; the message says which.
    """
    seam = _seam(PUBLIC_NAMES[name])
    if seam is None:
        raise AttributeError(f"commprof.{name}: {_lacks(PUBLIC_NAMES[name])}")
    return seam.public_name(name)


def all_commands() -> Iterator[Commands]:
    """Yields the module ``seam`` of each satellite that is installed, for its commands."""
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
