"""Loads a recorded run into a notebook or script; needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from commprof import invocation
from commprof.analysis.scaling import RunResult
from commprof.commands.showing.opened_run import OpenedRun
from commprof.errors import UsageError
from commprof.report import card as screen
from commprof.report.export.rows import rows, table_names
from commprof.text import listed
from commprof.trace.run.run_directory import strategy_directories


class LoadedRun:
    """An analysed run. A notebook displays it as the first screen of ``commprof report``."""

    def __init__(self, directory: Path) -> None:
        """Analyses the run in a directory; see ``load``."""
        run = OpenedRun(directory)
        self._report, self._added = run.report(), run.added

    @property
    def result(self) -> RunResult:
        """Every figure of the run, by world size."""
        return self._report.result

    @property
    def tables(self) -> list[str]:
        """Names that ``table`` and ``frame`` accept."""
        return table_names(self._added)

    def table(self, name: str) -> dict[str, np.ndarray]:
        """Returns a table's columns by name. The names contain units, and NaN means unknown.

        Raises:
            UsageError: there is no such table.
        """
        found = self._rows(name)
        return {key: np.array([row[key] for row in found]) for key in (found[0] if found else ())}

    def frame(self, name: str) -> Any:
        """Returns a table of the run as a ``pandas.DataFrame``.

        Raises:
            UsageError: there is no such table, or pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UsageError(
                f"frame() needs pandas: {invocation.pip('pandas')}; table() gives numpy arrays "
                "without it"
            ) from None
        return pandas.DataFrame(self._rows(name))

    def _rows(self, name: str) -> list[dict[str, Any]]:
        if name not in self.tables:
            raise UsageError(f"unknown table {name!r} (allowed: {listed(self.tables)})")
        return rows(self._report, name, self._added)

    def __repr__(self) -> str:
        """Returns the report's first screen as text, or a short description of the run."""
        if self._report.card is None:
            return f"LoadedRun({self.result.context['description']!r})"
        return screen.render(self._report.card)

    def _repr_html_(self) -> str:
        from commprof.report.html.page import rendered

        shown = self._report.card
        about: dict[str, Any] = {}
        if shown is not None:
            about = {"facts": screen.facts(shown), "parts": screen.said_parts(shown.parts)}
            about["scaling"] = " ".join(screen.scaling(shown.scaling))
        return rendered("card.html", card=shown, text=repr(self), **about)


def load(run: str | Path) -> LoadedRun:
    """Reads a run directory, or a recording of another profiler, as ``commprof report`` does.

    Args:
        run: path of the run directory or recording.

    Raises:
        CommprofError: the path is neither a run directory nor a recording, or it holds runs of
            several strategies.
    """
    directory = Path(run)
    if places := strategy_directories(directory):
        names = listed([invocation.quoted(place) for place in places])
        raise UsageError(
            f"{invocation.quoted(directory)} holds several strategies; load one of {names}"
        )
    return LoadedRun(directory)
