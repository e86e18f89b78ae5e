"""How often one step runs its backward pass, its update, and DDP's exchange."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commprof.trace import columns
from commprof.trace.columns import Ints, Steps
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase


@dataclass(frozen=True)
class Repeats:
    """Of the median step of a rank; 0 where nothing of the kind was recorded."""

    backward_passes: int = 0
    updates: int = 0
    #: Backward passes at whose end DDP waited for its buckets.
    exchanges: int = 0

    @property
    def sentences(self) -> list[str]:
        """What a reader must know of them; nothing of a step that does each once."""
        found = []
        if self.updates > 1:
            found.append(
                f"A step has {self.updates} optimizer updates, as with several optimizers; the "
                "time of the optimizer is that of all of them."
            )
        if self.updates and self.backward_passes > self.updates:
            text = (
                f"A step has {self.backward_passes} backward passes before "
                f"{'its update' if self.updates == 1 else f'{self.updates} updates'}: gradients "
                "are accumulated."
            )
            if 0 < self.exchanges < self.backward_passes:
                text += f" DDP exchanged them in {self.exchanges} of {self.backward_passes}."
            found.append(text)
        return found


def repeats(trace: Trace, measured_steps: Ints) -> Repeats:
    """Counts of the measured steps of one rank, by when each phase began."""
    steps = columns.steps(trace)
    phases, finalizations = columns.phases(trace), columns.finalizations(trace).span
    return Repeats(
        *(
            _median(steps, measured_steps, begins)
            for begins in (
                phases.begin_ns[phases.key == Phase.BACKWARD],
                phases.begin_ns[phases.key == Phase.OPTIMIZER],
                finalizations.begin_ns,
            )
        )
    )


def _median(steps: Steps, measured: Ints, begin_ns: Ints) -> int:
    chosen = np.isin(steps.index, measured)
    if not chosen.any():
        return 0
    begins = np.sort(begin_ns)
    counts = np.searchsorted(begins, steps.end_ns[chosen]) - np.searchsorted(
        begins, steps.begin_ns[chosen]
    )
    return int(np.median(counts))
