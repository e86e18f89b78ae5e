"""First import of the fork server; makes Ctrl-C end the server without a traceback.

Without this module, a Ctrl-C while the server imports torch would raise a KeyboardInterrupt that
the server does not catch. After its imports the server ignores Ctrl-C. In the ranks that the server
forks, multiprocessing restores the signal handling that this module set: Ctrl-C ends a rank
without a traceback, until `worker.guarded` handles the signal.
"""

from __future__ import annotations

from commprof.interrupts import end_at_once

end_at_once()
