"""Counts a model's parameters within milliseconds and without allocating them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def count_parameters(make: Callable[[], nn.Module]) -> int:
    """Returns the number of parameter elements of ``make()``, called on torch's meta device."""
    with torch.device("meta"), _WithoutValues():
        model = make()
    return sum(parameter.numel() for parameter in model.parameters())


class _WithoutValues(TorchFunctionMode):
    """Skips the torch functions that only set values, such as those of torch.nn.init.

    On the meta device, these functions would import torch._dynamo, which takes seconds.
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
