"""Detects an optimizer's steps that only create the optimizer's state.

``torch.distributed.checkpoint`` makes such a step if a script asks for the optimizer's state before
training. The optimizer's step hooks run in this step, too
(``findings/optimizer_state_dict_trains_before_the_first_step.sh``).
"""

from __future__ import annotations

import sys
from types import FrameType

#: Module and name of torch's function that makes such a step.
_MODULE, _MAKER = "torch.distributed.checkpoint.state_dict", "_init_optim_state"
#: Maximum number of stack frames between torch's function and the optimizer's hook.
_MOST_CALLS_BETWEEN = 6


def makes_state() -> bool:
    """True if this step only creates the optimizer's state; call it in a step hook."""
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
