"""Distinguishes updates from an optimizer's steps that only create the optimizer's state.

If a script asks for an optimizer's state before it trains, ``torch.distributed.checkpoint`` sets
the gradients and the learning rate to 0 and steps the optimizer, so that it creates its state. The
optimizer's step hooks run in this step, too
(``findings/optimizer_state_dict_trains_before_the_first_step.sh``).
"""

from __future__ import annotations

import sys
from types import FrameType

#: Module and function of torch that step an optimizer only to create its state.
_MODULE, _MAKER = "torch.distributed.checkpoint.state_dict", "_init_optim_state"
#: Largest number of stack frames between that function and the step's hook.
_MOST_CALLS_BETWEEN = 6


def makes_state() -> bool:
    """Called in an optimizer's step hook: True if the step only creates the optimizer's state."""
    maker = getattr(sys.modules.get(_MODULE), _MAKER, None)
    code = getattr(maker, "__code__", None)
    if code is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_CALLS_BETWEEN):
        if frame is None or frame.f_code is code:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code is code
