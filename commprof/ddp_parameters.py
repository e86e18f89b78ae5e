"""Finds the parameters that DDP reduces, and the parameters that DDP keeps equal on all ranks.

DDP ignores the parameters that a caller of ``_set_params_and_buffers_to_ignore_for_model`` names,
such as the shards of torchrec's embedding tables. The functions follow the rules of torch's
``DistributedDataParallel``, in ``_build_params_for_reducer`` and ``_sync_module_states``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

#: A parameter, after the parameter's name in the model that DDP wraps.
Named = tuple[str, torch.nn.Parameter]


def reduced(ddp: DistributedDataParallel) -> list[Named]:
    """Returns the parameters whose gradients DDP's reducer averages, in the model's order.

    A parameter with several names is left out only if all its names are ignored. A parameter that
    is frozen now is left out too.
    """
    ignored = _ignored(ddp)
    # As in DDP, names in the outermost module begin with a dot.
    chosen = {
        id(parameter)
        for prefix, module in ddp.module.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad and f"{prefix}.{name}" not in ignored
    }
    return [(name, one) for name, one in ddp.module.named_parameters() if id(one) in chosen]


def made_with_bytes(ddp: DistributedDataParallel) -> int | None:
    """Returns the total size of the parameters in DDP's reducer; None if unknown.

    A parameter that was frozen when DDP made the reducer is not in it, even if the parameter is
    unfrozen later.
    """
    try:
        return int(ddp._get_ddp_logging_data()["total_parameter_size_bytes"])
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None  # DDP's logging functions are private to torch, and may be removed


def reduced_first(ddp: DistributedDataParallel) -> list[Named]:
    """Returns all parameters of the model, those of :func:`reduced` first.

    A reduced parameter therefore has the same index on all ranks.
    """
    first = reduced(ddp)
    chosen = {id(parameter) for _, parameter in first}
    rest = [(name, one) for name, one in ddp.module.named_parameters() if id(one) not in chosen]
    return [*first, *rest]


def kept_equal(ddp: DistributedDataParallel) -> list[torch.nn.Parameter]:
    """Returns the parameters that DDP keeps equal, bit by bit, on all ranks.

    Parameters on the meta device are left out, because they have no values.
    """
    ignored = _ignored(ddp)
    delayed = {id(parameter) for parameter in getattr(ddp, "_delay_all_reduce_params", ())}
    differing = {
        id(parameter)
        for name, parameter in ddp.module.named_parameters(remove_duplicate=False)
        if name in ignored and id(parameter) not in delayed
    }
    return [
        parameter
        for parameter in ddp.module.parameters()
        if id(parameter) not in differing and not parameter.is_meta
    ]


def sparse_weights(model: torch.nn.Module) -> set[int]:
    """Returns the ids of the parameters that get sparse gradients, by DDP's rule."""
    return {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }


def hookless(ddp: DistributedDataParallel) -> str:
    """Returns why no communication hook can run in the model's reducer; empty if a hook can run."""
    if getattr(ddp, "_delay_all_reduce_all_params", False):
        return (
            "DDP has no gradient buckets in this model, because all its parameters are in "
            "delay_all_reduce_named_params"
        )
    if getattr(ddp, "_use_python_reducer", False):
        return (
            "DDP's Python reducer (torch._dynamo.config.optimize_ddp='python_reducer') has no "
            "gradient buckets"
        )
    return ""


def _ignored(ddp: DistributedDataParallel) -> Any:
    """Returns the names that DDP ignores. torch may remove this private attribute."""
    return getattr(ddp, "parameters_to_ignore", ())
