"""Functions through which the profiler uses this package; see ``commprof.satellites``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commprof.satellites import AddedReport
    from commprof.trace.run.run_directory import WorldRun
    from commprof.tune.compressors import Compressor
    from commprof.tune.trials.plan import TrialPlan

COMMANDS: Mapping[str, tuple[str, str]] = {}
OVERVIEW = ""
_RUN_HELP = """\
Gradient compressors, as --hook NAME or --hook NAME:option=value,option=value:
{compressors}
  commprof run --nproc 2 --hook int8                transformer, int8 gradients
  commprof run --nproc 2 --hook topk:ratio=0.001 train.py      your own script, top-k gradients
All compressors take measure_every=N. All but "none" and "hierarchical" also take feedback=0|1,
start_step=N, checksum=0|1, hierarchical=0|1. See docs/compressors.md.

A trial compares settings in one run: --trial CANDIDATE,CANDIDATE. The candidates take turns on the
steps. The report says what to change, if anything. A candidate is a compressor, as above, or one of
{candidates}
Join several with "+" to make one candidate. The trial has these options, shown with their defaults:
rounds=8,block=6,warmup=2,shuffle=0. More rounds give narrower intervals.
  commprof run --nproc 2 --trial fp16,int8,topk:ratio=0.01,bucket-cap=5 train.py
  commprof run --nproc 2 --trial int8,bucket-cap=5,int8+bucket-cap=5,rounds=12
  commprof run --nproc 2 --trial reshard-after-forward=false,prefetch=2 train_fsdp2.py
See docs/trials.md.

"""


def public_name(name: str) -> Any:
    """Returns ``commprof.compressors``, ``commprof.Trial`` or ``commprof.trial``."""
    if name == "compressors":
        from commprof.tune import compressors

        return compressors
    from commprof.tune.trials import live

    return getattr(live, name)


def sharding() -> ModuleType:
    """Returns the module ``commprof.tune.trials.sharding``, which reads settings of FSDP2."""
    from commprof.tune.trials import sharding as settings

    return settings


def parse_hook(text: str) -> Compressor:
    """Returns the compressor that a text such as ``topk:ratio=0.01`` names.

    Raises:
        UsageError: there is no such compressor, or an option is out of range.
    """
    from commprof.tune.compressors import parse

    return parse(text)


def exchanges() -> Mapping[str, str]:
    """Maps the name of each compressor to the way in which ranks exchange a bucket."""
    from commprof.tune.compressors.compressor import SCHEMES

    return {name: scheme.exchange for name, scheme in SCHEMES.items()}


def run_help() -> str:
    """Returns the help text of ``commprof run`` on compressors and trials."""
    from commprof.tune.compressors.compressor import help_text as compressors
    from commprof.tune.trials.candidates import help_text as candidates

    return _RUN_HELP.format(compressors=compressors(), candidates=candidates())


def parse_trial(text: str) -> TrialPlan:
    """Returns the plan of a trial.

    Raises:
        UsageError: the text cannot be read as a list of candidates and options.
    """
    from commprof.tune.trials import plan

    return plan.parse_trial(text)


def set_every_model(setting: str, profiler: Any) -> None:
    """Applies a setting permanently to the FSDP2 models of this process."""
    from commprof.tune.trials.live import sharded

    sharded.set_every_model(setting, profiler)


def try_every_model(trial: str, profiler: Any) -> None:
    """Prepares one trial that includes all models of this process."""
    from commprof.tune.trials.live import controller

    controller.try_every_model(trial, profiler)


def try_model(model: Any, trial: str) -> None:
    """Starts a trial in a model, see ``commprof.trial``."""
    from commprof.tune.trials import live

    live.trial(model, trial)


def register_backend() -> None:
    """Registers the backend ``commprof`` with torch."""
    from commprof.tune import backend

    backend.register()


def recorded_trial(run: WorldRun, context: Mapping[str, Any]) -> AddedReport | None:
    """Returns the report of the trial that a run recorded."""
    from commprof.tune.report import TrialReport
    from commprof.tune.trials.analyse import analyse_world_trial

    return TrialReport(analyse_world_trial(run, context))


def no_trial(directory: Path) -> str:
    """Returns the reason why a requested trial did not begin, for the end of a sentence."""
    from commprof.tune.trials import found

    return found.no_trial(directory)
