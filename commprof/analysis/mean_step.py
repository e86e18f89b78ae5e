"""The mean step of one world size, and the parts of this step.

Steps that stalled are left out, and are reported separately: one step that hung for seconds can
dominate a mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from commprof.analysis.detail import WorldDetail
from commprof.analysis.step.breakdown import Floats
from commprof.analysis.step.stalls import stalled

#: Parts that add up to the step. "communication" is exposed communication only.
PARTS = ("compute", "communication", "data", "optimizer", "other")
#: Parts of the step if a device's kernels were recorded. Compute includes kernels of unknown phase.
DEVICE_PARTS = (*PARTS[:-1], "copies", "idle")
#: Parts that add up to communication.
SPLIT = ("waiting", "transfer", "unsplit")


@dataclass(frozen=True)
class MeanStep:
    """Mean step, over all ranks and over the steps that did not stall."""

    #: ``[step, part]``, in the order of ``parts_ms``: mean over ranks, in ms.
    by_step_ms: Floats
    #: Mean of each of ``PARTS`` or ``DEVICE_PARTS``; they add up to ``step_ms``. A part that the
    #: recordings do not support is NaN, or 0 for communication.
    parts_ms: Mapping[str, float]
    #: Mean of each of ``SPLIT``; empty if the split is unknown in all steps.
    split_ms: Mapping[str, float]
    step_ms: float
    #: Communication during which the training thread worked; not a part of ``step_ms``. NaN if the
    #: capture could not see communication.
    hidden_ms: float
    #: The parts of compute. ``unphased_compute_ms`` is the time of kernels of unknown phase; 0 if
    #: no kernels were recorded.
    forward_ms: float
    backward_ms: float
    unphased_compute_ms: float = 0.0

    @property
    def exposed_ms(self) -> float:
        """Exposed communication: the sum of waiting, transfer and unsplit time."""
        return self.parts_ms["communication"]

    def share(self, part: str) -> float:
        """Returns the fraction of the step that this part of ``parts_ms`` or ``split_ms`` takes."""
        return {**self.parts_ms, **self.split_ms}[part] / self.step_ms

    @property
    def is_of_device(self) -> bool:
        """True if the parts are those of a device whose kernels were recorded."""
        return "idle" in self.parts_ms


def mean_step(detail: WorldDetail) -> MeanStep:
    """Returns the mean step of one world size."""
    kept = ~stalled(detail.slowest_ms)
    ms = {name: values[:, kept] for name, values in detail.parts_ms.items()}
    mean = {name: values.mean(axis=0) for name, values in ms.items()}
    mean |= {"compute": mean["forward"] + mean["backward"]}
    mean |= {"communication": np.nan_to_num(mean["exposed"])}
    unphased = mean["unphased_compute"]
    names: tuple[str, ...] = PARTS
    if not np.isnan(unphased).any():
        names = DEVICE_PARTS
        mean["compute"] += unphased
    by_step = np.stack([mean[name] for name in names], axis=1)
    parts = dict(zip(names, map(float, by_step.mean(axis=0)), strict=True))
    return MeanStep(
        by_step_ms=by_step,
        parts_ms=parts,
        split_ms=_split(ms, parts["communication"]),
        step_ms=float(mean["step"].mean()),
        hidden_ms=float(mean["hidden"].mean()),
        forward_ms=float(mean["forward"].mean()),
        backward_ms=float(mean["backward"].mean()),
        unphased_compute_ms=float(np.nan_to_num(unphased).mean()),
    )


def _split(ms: Mapping[str, Floats], exposed_ms: float) -> dict[str, float]:
    unknown = np.isnan(ms["wait"][ms["exposed"] != 0])
    if unknown.size and unknown.all():
        return {}
    waiting, transfer = (
        float(np.nan_to_num(ms[name], nan=0.0).mean()) for name in ("wait", "transfer")
    )
    return dict(
        zip(SPLIT, (waiting, transfer, max(0.0, exposed_ms - waiting - transfer)), strict=True)
    )
