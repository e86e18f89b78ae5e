"""What the fork server imports first: from then on a Ctrl-C ends it without a traceback.

It imports torch then, and knows of no KeyboardInterrupt; later it ignores the signal by itself.
The ranks that it forks begin with this, and take the signal as usual from `worker.guarded` on.
"""

from __future__ import annotations

from commprof.interrupts import end_at_once

end_at_once()
