"""The number of a model's parameters, in milliseconds and without memory for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def count_parameters(make: Callable[[], nn.Module]) -> int:
    """Returns how many numbers the parameters of the made model hold, on torch's meta device."""
    with torch.device("meta"), _WithoutValues():
        model = make()
    return sum(parameter.numel() for parameter in model.parameters())


class _WithoutValues(TorchFunctionMode):
    """Leaves out what only sets values.

    On the meta device torch does that in Python, which imports torch._dynamo for seconds.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        initialises = getattr(function, "__module__", "") == "torch.nn.init"
        if initialises or function in (Tensor.normal_, Tensor.uniform_, torch.triu):
            return args[0] if args else given["tensor"]
        return function(*args, **given)
