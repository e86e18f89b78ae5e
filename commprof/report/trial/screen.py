"""A trial on one screen: the verdict, what to type, and the candidates as far as there is room."""

from __future__ import annotations

from commprof.report.one_screen import LINES, WIDTH, command_lines, cut, prose, table_lines
from commprof.report.trial.table import candidates_grid, notes, setup
from commprof.text import counted
from commprof.trials.result import TrialResult

#: Of the table of candidates, by the first line of their headers; the last ones as far as they fit.
_COLUMNS = ("candidate", "step", "over none", "pays below")
#: Lines of prose; more stand in the whole report.
_MOST_SENTENCES = 9


def render(trial: TrialResult, description: str, all_command: str, remarks: int = 0) -> str:
    """At most 24 lines of 80 columns.

    Args:
        trial: what was found.
        description: of the workload.
        all_command: what to type to see everything.
        remarks: how many notes on the run stand there.
    """
    said = [line for sentence in trial.verdict.sentences for line in prose(sentence)]
    if len(said) > _MOST_SENTENCES:
        said = [*said[: _MOST_SENTENCES - 1], f"{said[_MOST_SENTENCES - 1][: WIDTH - 4]} ..."]
    apply = command_lines(trial.verdict.apply) if trial.verdict.apply else []
    top = [cut(description), *prose(setup(trial)), *said]
    top += ["To apply it:", *apply] if apply else []
    caveats = len(notes(trial)) + remarks
    bottom = [f"! {counted(caveats, 'note')} on how to read it: see --all"] if caveats else []
    bottom += ["Next, to see all of it:", *command_lines(all_command)]
    space = LINES - len(top) - len(bottom) if trial.rounds else 0
    table = table_lines(candidates_grid(trial), _COLUMNS, space, "candidate")
    return "\n".join([*top, *table, *bottom]) + "\n"
