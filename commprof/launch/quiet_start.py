"""Makes Ctrl-C end the fork server without a traceback; the server imports this module first.

The server does not catch a KeyboardInterrupt while it imports torch. The forked ranks also end
without a traceback, until `worker.guarded` handles Ctrl-C.
"""

from __future__ import annotations

from commprof.interrupts import end_at_once

end_at_once()
