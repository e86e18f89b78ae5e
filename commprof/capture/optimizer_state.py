"""Distinguishes updates from an optimizer's steps that only create the optimizer's state.

``torch.distributed.checkpoint`` steps an optimizer without state, with gradients and learning rate
0, when a script asks for the optimizer's state before it trains. The optimizer's step hooks run
(``findings/optimizer_state_dict_trains_before_the_first_step.sh``).
"""

from __future__ import annotations

import sys
from types import FrameType

#: Module and function of torch that make such a step.
_MODULE, _MAKER = "torch.distributed.checkpoint.state_dict", "_init_optim_state"
#: Largest number of calls between that function and a hook of the step.
_MOST_CALLS_BETWEEN = 6


def makes_state() -> bool:
    """True if a step's hook calls this, and the step only creates the optimizer's state."""
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
