"""First import of the fork server; makes Ctrl-C end the server without a traceback.

Without this module, a Ctrl-C while the server imports torch would raise a KeyboardInterrupt that
the server does not catch. After its imports the server ignores Ctrl-C. multiprocessing restores
this module's signal handling in the ranks that the server forks: Ctrl-C ends a rank without a
traceback, until `worker.guarded` handles the signal.
"""

from __future__ import annotations

from commprof.interrupts import end_at_once

end_at_once()
