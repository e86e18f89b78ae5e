"""Finds the trial in a run directory. Imports the analysis only if there is a trial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commprof.analysis.align.interfaces import own_metadata
from commprof.analysis.step.measured import in_turns
from commprof.trace.run.run_directory import read_context, read_world

if TYPE_CHECKING:
    from commprof.tune.trials.result import TrialResult


def analyse_trial(directory: Path) -> TrialResult | None:
    """Analyses the trial of a run; None if the run had no trial.

    Raises:
        CommprofError: ``directory`` is not a run directory.
    """
    context = read_context(directory)
    for world_size in context["world_sizes"]:
        run = read_world(directory, world_size)
        if in_turns(run):
            from commprof.tune.trials.analyse import analyse_world_trial

            return analyse_world_trial(run, context)
    return None


def no_trial(directory: Path) -> str:
    """Returns the reason why a requested trial did not begin, for the end of a sentence."""
    for world_size in read_context(directory)["world_sizes"]:
        for trace in read_world(directory, world_size).traces.values():
            if reason := own_metadata(trace, "no_trial"):
                return str(reason["reason"])
    return "no rank recorded the reason; see the ranks' output"
