"""Commands and functions that this package adds to the profiler, see ``commprof.satellites``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_COMMANDS = "commprof.forecast.commands"
COMMANDS = {
    "microbench": (
        "measure collectives alone, by message size",
        f"{_COMMANDS}.microbench:MicrobenchCommand",
    ),
    "fit": (
        "fit the cost of this machine's collectives, for predictions",
        f"{_COMMANDS}.fit:FitCommand",
    ),
    "predict": (
        "predict a recorded run's step in other settings",
        f"{_COMMANDS}.predict:PredictCommand",
    ),
    "chakra": (
        "write a recorded run as Chakra execution traces",
        f"{_COMMANDS}.chakra:ChakraCommand",
    ),
}
OVERVIEW = """\
  commprof microbench OP      measure collectives alone, by message size
  commprof fit SOURCE...      fit the cost of this machine's collectives, for predictions
  commprof predict RUN        predict the step on other links, world sizes, buckets and hooks
  commprof chakra RUN --output DIR   write Chakra execution traces, for network simulators
"""


def expected_times(path: Path) -> Callable[[str, int, int, bool], float]:
    """Returns a function that computes the time of a collective from a machine profile.

    Args:
        path: the profile's file.

    Returns:
        A function with the arguments operation, bytes, ranks, and True if all ranks are on one
        host. The function returns seconds, or NaN if the operation has no curve on such a link.

    Raises:
        CommprofError: the file is not a machine profile.
    """
    from commprof.forecast.costs.machine_profile import load_profile

    return load_profile(path).expected_s
