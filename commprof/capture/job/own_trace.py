"""Recent figures of this process, read back from its own trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commprof.trace.run.endings import rank_and_attempt

if TYPE_CHECKING:
    from commprof.monitor.observer import Observer

#: Only records older than this are used, because other threads may be late with records of ends.
_SETTLED_NS = 10_000_000


class OwnTrace:
    """Reader of this rank's own trace; opens nothing before its first use."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._observer: Observer | None = None

    def figures(self, path: Path | None) -> dict[str, float]:
        """Returns recent figures by names such as ``commprof/step_seconds``.

        Empty before the first complete step.

        Args:
            path: path of the trace; None before capture has started.
        """
        if path is None:
            return {}
        # Imported here, because capture alone must not load the analysis.
        from commprof.monitor.metrics.metrics import flat
        from commprof.monitor.observer import Following, Observer

        if self._observer is None or path != self._path:
            self.close()
            found = rank_and_attempt(path)
            self._path = path
            self._observer = Observer(
                path.parent,
                nested=False,
                patience_s=0.0,
                following=Following(found and found[0], _SETTLED_NS),
            )
        state = self._observer.poll()
        if state is None or not any(rank.recent for rank in state.ranks):
            return {}
        return flat(state, ranks=False)

    def close(self) -> None:
        """Closes the trace."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None
