"""Switches settings of an FSDP2 model between steps, and restores them.

FSDP2 has a state for each ``fully_shard`` call, and each state has groups of parameters. FSDP2
reads its settings from attributes of these objects in every step, so a switch only sets attributes.
A separate process group for reduce-scatters is made at its first use, and exists until the job
ends.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from commprof.capture.job.metadata import rank_and_world_size
from commprof.capture.patches.replaced import Patches
from commprof.capture.profiler import Profiler
from commprof.tune.compressors.groups import timeout_of
from commprof.tune.trials.candidates import HEADROOM, ROLES, Candidate, parse_candidate
from commprof.tune.trials.live.state import alive
from commprof.tune.trials.sharding import (
    DTYPES,
    OWN,
    REDUCE_DTYPE,
    RESHARD,
    SCATTER_GROUP,
    ShardingSetting,
    parse_sharding,
)

_IMPLEMENTATION = "torch.distributed.fsdp._fully_shard._fully_shard"
_GROUP_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
#: Attribute of FSDP2's parameters from torch 2.15 on: type of the unsharded gradients.
_GRADIENTS_IN = "unsharded_grad_dtype"
#: Attribute of FSDP2's meshes from torch 2.13 on: process group for reduce-scatters, or None.
_SCATTER_GROUP = "reduce_scatter_process_group"


def may_be_sharded() -> bool:
    """True if this process has called ``fully_shard``. The check is cheap."""
    return bool(getattr(sys.modules.get(_IMPLEMENTATION), "cls_to_fsdp_cls", None))


def is_sharded(model: Any) -> bool:
    """True if ``fully_shard`` was called on this module itself."""
    return isinstance(model, nn.Module) and _state_of(model) is not None


def _state_of(module: nn.Module) -> Any:
    find = getattr(module, "_get_fsdp_state", None)
    return None if find is None else find()


def states_of(root: nn.Module) -> list[Any]:
    """Returns the FSDP2 states of a model, the outermost state first."""
    states = [_state_of(module) for module in root.modules()]
    return list({id(one): one for one in states if one is not None}.values())


def _groups_of(state: Any) -> list[Any]:
    """Returns a state's groups of parameters; before torch 2.12 a state has at most one group."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group else []


class ShardedModel:
    """An FSDP2 model that takes part in a trial, or gets a setting permanently."""

    def __init__(self, root: nn.Module, order: GatherOrder) -> None:
        """Stores a model without changing it.

        Args:
            root: outermost module on which ``fully_shard`` was called.
            order: the order in which all models of this process gather parameters.
        """
        self._states = states_of(root)
        self._groups = [group for state in self._states for group in _groups_of(state)]
        self._order = order
        self._undo: list[Callable[[], None]] = []
        self._scatter_groups: dict[tuple[int, ...], Any] = {}

    @property
    def has_lost_its_group(self) -> bool:
        """True if the script destroyed the group over which this model gathers."""
        try:
            for group in self._groups[:1]:
                dist.get_process_group_ranks(group.mesh_info.shard_process_group)
        except (KeyError, ValueError):
            return True
        return False

    @property
    def has_own_hook(self) -> bool:
        """Always False: hooks of an FSDP2 model do not matter in a trial."""
        return False

    @property
    def world_size(self) -> int:
        """Number of ranks among which parameters are sharded."""
        return int(self._groups[0].mesh_info.shard_process_group.size()) if self._groups else 1

    def gathered(self, text: str) -> list[str]:
        """Gathers the texts of the model's ranks. All these ranks call this together.

        In HSDP, the result has one text per shard group: the group's first text that is not empty,
        or an empty text.
        """
        texts = [text]
        if not self._groups:
            return texts
        info = self._groups[0].mesh_info
        for group in (info.shard_process_group, getattr(info, "replicate_process_group", None)):
            if group is not None:
                mine = next(filter(None, texts), "")
                texts = [""] * group.size()
                dist.all_gather_object(texts, mine, group=group)
        return texts

    def is_for(self, candidate: Candidate) -> bool:
        """True for candidates with settings of FSDP2, and for the trial's own candidates."""
        return bool(candidate.sharding.count) or candidate in ROLES

    def impossible(self, candidate: Candidate) -> str:
        """Returns the reason why this model cannot use a candidate; empty if it can."""
        setting = candidate.sharding
        if not self.is_for(candidate):
            return "the model is sharded by FSDP2 and has neither buckets nor hooks of DDP"
        if setting.reshard is not None and all(
            _reshards(group) is setting.reshard for group in self._groups
        ):
            return f"the whole model has {RESHARD}={str(setting.reshard).lower()} already"
        if setting.prefetch is not None:
            if not self._order.forward(self._states):
                return "the order in which the model gathers its groups of parameters is unknown"
            if setting.prefetch >= len(self._groups):
                last = len(self._groups) - 1
                return f"at most {last} groups of parameters can be prefetched"
        if setting.reduce_dtype and all(
            _reduced_in(group) in (None, _dtype(setting)) for group in self._groups
        ):
            return f"the model has {REDUCE_DTYPE}={setting.reduce_dtype} already"
        if setting.own_scatter_group:
            meshes = [group.mesh_info for group in self._groups]
            if not all(hasattr(mesh, _SCATTER_GROUP) for mesh in meshes):
                return (
                    f"torch {torch.__version__} has no separate group for reductions; use torch "
                    "2.13 or later"
                )
            if all(getattr(mesh, _SCATTER_GROUP) for mesh in meshes):
                return f"the model has {SCATTER_GROUP}={OWN} already"
        return ""

    def held_bytes(self, setting: ShardingSetting) -> float:
        """Returns the bytes of gathered parameters that ``setting`` adds, at most, on one rank."""
        held = 0.0
        if setting.reshard is False:
            held += sum(_bytes(group) for group in self._groups if group.post_forward_mesh_info)
        elif setting.prefetch is not None:
            held += sum(sorted(map(_bytes, self._groups))[-setting.prefetch :])
        return held

    def enter(self, candidate: Candidate, length: int) -> None:
        """Applies a candidate; ``length`` is not used."""
        if candidate.label == HEADROOM:
            for group in self._groups:
                self._exchange_nothing(group)
        else:
            self.use(candidate.sharding)

    def use(self, setting: ShardingSetting) -> None:
        """Applies a setting. Call it between steps, on all ranks at the same step."""
        for group in self._groups:
            if setting.reshard is not None:
                mesh = group.mesh_info if setting.reshard else None
                self._put(group, "post_forward_mesh_info", mesh)
            if setting.reduce_dtype:
                self._reduce_in(group, _dtype(setting))
            if setting.own_scatter_group and not getattr(group.mesh_info, _SCATTER_GROUP):
                self._put(group.mesh_info, _SCATTER_GROUP, self._scatter_group(group))
        if setting.prefetch is not None:
            self._prefetch(setting.prefetch)

    def leave(self) -> None:
        """Restores all settings that were changed."""
        while self._undo:
            self._undo.pop()()

    def close(self) -> None:
        """Does nothing, because ``leave`` has restored all settings."""

    def _put(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def _scatter_group(self, group: Any) -> Any:
        ranks = tuple(dist.get_process_group_ranks(group.mesh_info.shard_process_group))
        if ranks not in self._scatter_groups:
            self._scatter_groups[ranks] = dist.new_group(
                list(ranks),
                timeout=timeout_of(group.mesh_info.shard_process_group, group.device),
                use_local_synchronization=True,
                group_desc="fsdp_reduce_scatter",
            )
        return self._scatter_groups[ranks]

    def _reduce_in(self, group: Any, dtype: torch.dtype) -> None:
        # FSDP2 has derived types from the policy, so changing only the policy has no effect.
        self._undo.append(lambda: _follow_policy(group))
        for owner in _owners_of_policy(group):
            self._put(owner, "mp_policy", dataclasses.replace(owner.mp_policy, reduce_dtype=dtype))
        _follow_policy(group)

    def _prefetch(self, depth: int) -> None:
        for name, order in (
            ("_states_to_forward_prefetch", self._order.forward(self._states)),
            ("_states_to_backward_prefetch", self._order.backward(self._states)),
        ):
            for position, state in enumerate(order):
                self._put(state, name, order[position + 1 : position + 1 + depth])
        for group in self._groups:
            if group.device.type == "cpu":
                # A CPU has no streams. Without this flag, the training thread waits for each
                # gather immediately, even for a prefetched group.
                self._put(group, "unshard_async_op", True)

    def _exchange_nothing(self, group: Any) -> None:
        """Replaces the group's collectives by local copies, so that nothing is sent."""
        self._put(group, "_all_gather_comm", _OwnGather(group._all_gather_comm))
        self._put(group, "_reduce_scatter_comm", _OwnScatter(group._reduce_scatter_comm))
        self._put(group, "_all_reduce_hook", None)
        self._put(group, "_all_reduce_hook_stream", None)
        if group._is_hsdp:
            # In a mesh without replicas, FSDP2 all-reduces nothing.
            whole = group.mesh_info
            alone = _fsdp_mesh(whole)
            if group.post_forward_mesh_info is whole:
                self._put(group, "post_forward_mesh_info", alone)
            self._put(group, "mesh_info", alone)


def _fsdp_mesh(hsdp: Any) -> Any:
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    return FSDPMeshInfo(hsdp.mesh, shard_mesh_dim=hsdp.shard_mesh_dim)


def _reshards(group: Any) -> bool | None:
    """Returns whether the group reshards after forward; None if it reshards to fewer ranks."""
    after = group.post_forward_mesh_info
    return after is group.mesh_info if after in (None, group.mesh_info) else None


def _dtype(setting: ShardingSetting) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, DTYPES[setting.reduce_dtype])
    return dtype


def _owners_of_policy(group: Any) -> list[Any]:
    """Returns the owners of ``mp_policy``: the group before torch 2.15, later its parameters."""
    return [group] if hasattr(group, "mp_policy") else list(group.fsdp_params)


def _follow_policy(group: Any) -> None:
    """Makes FSDP2 derive its types from ``mp_policy`` again."""
    group._init_mp_dtypes()
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        if hasattr(parameter, _GRADIENTS_IN) and whole is not None and whole.grad is None:
            whole.grad_dtype = parameter.unsharded_grad_dtype


def _reduced_in(group: Any) -> torch.dtype | None:
    """Returns the type in which a group reduces gradients; None if its parameters are frozen."""
    trained = [
        parameter for parameter in group.fsdp_params if parameter.sharded_param.requires_grad
    ]
    if not trained:
        return None
    attribute = _GRADIENTS_IN if hasattr(trained[0], _GRADIENTS_IN) else "param_dtype"
    dtype: torch.dtype = (
        trained[0].reduce_dtype or getattr(trained[0], attribute) or trained[0].orig_dtype
    )
    return dtype


def _bytes(group: Any) -> float:
    return float(
        sum(
            parameter._orig_size.numel() * (parameter.param_dtype or parameter.orig_dtype).itemsize
            for parameter in group.fsdp_params
        )
    )


class GatherOrder:
    """The order in which all FSDP2 models of this process gather parameters in a step."""

    def __init__(self) -> None:
        """Creates an empty order; ``watch`` starts recording."""
        self._patches = Patches()
        self.is_watching = False
        self._seen: dict[str, dict[int, Any]] = {"pre_forward": {}, "pre_backward": {}}

    def forward(self, states: Sequence[Any]) -> list[Any]:
        """Returns the ``states`` that ran in forward, in the order in which they gather."""
        return self._sorted("pre_forward", states)

    def backward(self, states: Sequence[Any]) -> list[Any]:
        """Returns the ``states`` that ran in backward, in the order in which they gather."""
        return self._sorted("pre_backward", states)

    def watch(self) -> None:
        """Starts recording. Further calls do nothing."""
        if self.is_watching:
            return
        self.is_watching = True
        owner = sys.modules[_GROUP_MODULE].FSDPParamGroup
        for name in self._seen:
            self._patches.replace(owner, name, self._noting(name, getattr(owner, name)))

    def stop(self) -> None:
        """Stops recording."""
        self._patches.remove()

    def roots(self) -> list[nn.Module]:
        """Returns the outermost module of each recorded model."""
        if not self._seen["pre_forward"]:
            return []
        modules = [
            module
            for module in alive((nn.Module,))
            if getattr(_state_of(module), "_is_root", False)
        ]
        return [module for module in modules if self.forward(states_of(module))]

    def _sorted(self, name: str, states: Sequence[Any]) -> list[Any]:
        state_of = {id(group): state for state in states for group in _groups_of(state)}
        found = [state_of[key] for key in self._seen[name] if key in state_of]
        return list({id(state): state for state in found}.values())

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(group: Any, *args: Any, **kwargs: Any) -> Any:
            self._seen[name].setdefault(id(group), group)
            return original(group, *args, **kwargs)

        return noted


class _Own:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        memory: torch.Tensor = self._inner.allocate(*args, **kwargs)
        return memory


class _OwnGather(_Own):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *_: Any, **__: Any
    ) -> None:
        count = output_tensor.numel() // input_tensor.numel()
        for part in output_tensor.view(count, -1):
            if part.data_ptr() != input_tensor.data_ptr():
                part.copy_(input_tensor)


class _OwnScatter(_Own):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        *_: Any,
        **__: Any,
    ) -> None:
        output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])


def set_every_model(text: str, profiler: Profiler) -> None:
    """Applies a setting permanently to the FSDP2 models, after their second step.

    Args:
        text: text from which ``parse_sharding`` makes the setting.
        profiler: the capture of this process.

    Raises:
        UsageError: ``text`` cannot be read.
    """
    profiler.listen(_Setter(parse_candidate(parse_sharding(text).label)))


class _Setter:
    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._order = GatherOrder()
        self._done = False

    def step_ended(self, _: int) -> None:
        """Starts recording after the first step, and applies the setting after the second step."""
        if self._done or not may_be_sharded():
            return
        self._order.watch()
        if not (roots := self._order.roots()):
            return
        self._order.stop()
        self._done = True
        for root in roots:
            model = ShardedModel(root, self._order)
            if not (why := model.impossible(self._candidate)):
                model.use(self._candidate.sharding)
            elif rank_and_world_size()[0] == 0:
                print(f"commprof: {self._candidate.label} was not applied: {why}", file=sys.stderr)

    def capture_ends(self) -> None:
        self._order.stop()
