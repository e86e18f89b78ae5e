"""First import of the fork server: from then on, a Ctrl-C ends it without a traceback.

The server next imports torch, and does not handle KeyboardInterrupt; later it ignores the signal.
The ranks that it forks start in the same state, and handle the signal from `worker.guarded` on.
"""

from __future__ import annotations

from commprof.interrupts import end_at_once

end_at_once()
