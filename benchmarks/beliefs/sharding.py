"""Beliefs about FSDP2, DTensor, device meshes, pipelines and checkpoints."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.beliefs.asking import belief, operators, outcome

SHARDED = "commprof/forecast/sharded"
THEORY = "commprof/workloads/strategies/theory.py"
SEEN = "csrc/torch/capture/observer.cpp"


def _mesh(*shape: int, names: tuple[str, ...] = ("dp",)) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape or (dist.get_world_size(),), mesh_dim_names=names)


def _sharded(layers: int = 2, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh()
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(layers)))
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def _reduce_scatters(model: nn.Module) -> list[dict[str, Any]]:
    """Returns the keyword arguments of each reduce-scatter that FSDP2 issues in one pass."""
    seen: list[dict[str, Any]] = []

    def noted(original: Any) -> Any:
        def call(**options: Any) -> Any:
            seen.append(options)
            return original(**options)

        return call

    # The name up to torch 2.12, and the name from torch 2.13 on.
    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(dist, name):
            setattr(dist, name, noted(getattr(dist, name)))
    _pass(model)
    return seen


def _pass(model: nn.Module) -> None:
    model(torch.ones(2, 16)).square().sum().backward()


@belief("init_device_mesh over gloo exchanges nothing through c10d's operators", "nothing")
def mesh_is_made() -> str:
    return operators(_mesh)


@belief(
    "a 2 x 2 mesh makes two new groups on each rank",
    "2",
    "csrc/torch/capture/process_groups.cpp",
    ranks=4,
)
def mesh_of_two_dimensions() -> str:
    before = len(dist.distributed_c10d._world.pg_names)
    _mesh(2, 2, names=("dp", "tp"))
    return str(len(dist.distributed_c10d._world.pg_names) - before)


@belief(
    "a mesh over all ranks uses the default group, and makes no new group",
    "0",
    "csrc/torch/capture/process_groups.cpp",
)
def mesh_of_all_ranks() -> str:
    before = len(dist.distributed_c10d._world.pg_names)
    _mesh()
    return str(len(dist.distributed_c10d._world.pg_names) - before)


@belief("distribute_tensor to Replicate exchanges nothing: every rank has the tensor", "nothing")
def distributed_replicated() -> str:
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = _mesh()
    return operators(lambda: distribute_tensor(torch.ones(4), mesh, [Replicate()]))


@belief("distribute_tensor to Shard cuts locally and exchanges nothing", "nothing")
def distributed_sharded() -> str:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = _mesh()
    return operators(lambda: distribute_tensor(torch.ones(4), mesh, [Shard(0)]))


@belief("from_local with the defaults exchanges nothing", "nothing")
def from_local() -> str:
    from torch.distributed.tensor import DTensor, Replicate

    mesh = _mesh()
    return operators(lambda: DTensor.from_local(torch.ones(4), mesh, [Replicate()]))


def _redistributed(before: str, after: str) -> str:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    placements = {"partial": Partial(), "replicate": Replicate(), "shard": Shard(0)}
    tensor = DTensor.from_local(torch.ones(4, 4), _mesh(), [placements[before]])
    return operators(lambda: tensor.redistribute(placements=[placements[after]]).to_local() + 1)


@belief("Partial to Replicate on CPUs is an all-reduce", "allreduce_", SEEN)
def partial_to_replicate() -> str:
    return _redistributed("partial", "replicate")


@belief("Partial to Shard on CPUs is a reduce-scatter of a tensor", "_reduce_scatter_base_", SEEN)
def partial_to_shard() -> str:
    return _redistributed("partial", "shard")


@belief("Shard to Replicate on CPUs is an all-gather into a tensor", "_allgather_base_", SEEN)
def shard_to_replicate() -> str:
    return _redistributed("shard", "replicate")


@belief("Replicate to Shard exchanges nothing", "nothing", SEEN)
def replicate_to_shard() -> str:
    return _redistributed("replicate", "shard")


@belief("making a random sharded DTensor exchanges nothing", "nothing")
def random_tensor() -> str:
    import torch.distributed.tensor as tensors

    mesh = _mesh()
    placements = [tensors.Shard(0)]
    return operators(lambda: tensors.randn(8, 8, device_mesh=mesh, placements=placements))


@belief(
    "FSDP2: a root and two layers take 3 gathers in forward, 2 in backward, 3 reduce-scatters",
    "5 _allgather_base_, 3 _reduce_scatter_base_",
    THEORY,
)
def fsdp_pass() -> str:
    from torch.distributed.fsdp import fully_shard

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))
            self.layers = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(2)))

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return self.layers(tensor * self.scale)

    mesh, model = _mesh(), Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _pass(model)
    return operators(lambda: _pass(model))


@belief(
    "a root without parameters of its own is not gathered: 2 + 2 gathers, 2 reduce-scatters",
    "4 _allgather_base_, 2 _reduce_scatter_base_",
    THEORY,
)
def fsdp_empty_root() -> str:
    model = _sharded()
    _pass(model)
    return operators(lambda: _pass(model))


@belief(
    "FSDP2: the last layer stays gathered after forward, because backward begins with it",
    "3 _allgather_base_, 2 _reduce_scatter_base_",
    SHARDED,
)
def fsdp_last_layer() -> str:
    model = _sharded()
    _pass(model)
    return operators(lambda: _pass(model))


@belief(
    "set_requires_gradient_sync(False) keeps the gathers and omits the reduce-scatters",
    "4 _allgather_base_",
    THEORY,
)
def fsdp_no_sync() -> str:
    model = _sharded()
    _pass(model)
    model.set_requires_gradient_sync(False)
    return operators(lambda: _pass(model))


@belief(
    "set_reshard_after_backward(False): the next pass gathers nothing in forward",
    "2 _allgather_base_, 2 _reduce_scatter_base_",
    SHARDED,
)
def fsdp_keeps_after_backward() -> str:
    model = _sharded()
    model.set_reshard_after_backward(False)
    _pass(model)
    return operators(lambda: _pass(model))


@belief("FSDP2 over gloo reduces with AVG", "AVG", "csrc/core/record.h")
def fsdp_reduces_with() -> str:
    return str(_reduce_scatters(_sharded())[0]["op"]).rpartition(".")[2]


@belief(
    "param_dtype=bf16 alone: gradients are reduced in fp32, the type of the parameters",
    "torch.float32",
    THEORY,
)
def fsdp_reduce_type() -> str:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model = _sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return str(_reduce_scatters(model)[0]["input"].dtype)


@belief("FSDP2 with reduce_dtype=fp16 also reduces with AVG", "AVG", "csrc/core/record.h")
def fsdp_reduces_fp16_with() -> str:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)
    return str(_reduce_scatters(_sharded(mp_policy=policy))[0]["op"]).rpartition(".")[2]


@belief(
    "FSDP2: frozen layers are gathered and not reduced",
    "4 _allgather_base_, _reduce_scatter_base_",
    THEORY,
)
def fsdp_frozen() -> str:
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh()
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(2)))
    model[0].requires_grad_(False)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _pass(model)
    return operators(lambda: _pass(model))


@belief(
    "FSDP2: the first pass exchanges as often as later passes",
    "4 _allgather_base_, 2 _reduce_scatter_base_",
    SHARDED,
)
def fsdp_first_pass() -> str:
    model = _sharded()
    return operators(lambda: _pass(model))


@belief("FSDP2 on a group of one rank exchanges nothing", "nothing", THEORY, ranks=1)
def fsdp_of_one() -> str:
    model = _sharded()
    _pass(model)
    return operators(lambda: _pass(model))


@belief(
    "clip_grad_norm_ of an FSDP2 model is one all-reduce, when the norm is read",
    "allreduce_",
    THEORY,
)
def fsdp_clips() -> str:
    model = _sharded()
    _pass(model)
    return operators(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


@belief(
    "reading the returned norm with .item() gives the norm of all shards", "that of all", THEORY
)
def fsdp_norm_is_read() -> str:
    model = _sharded(1)
    _pass(model)
    full = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()]).norm().item()
    read = nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
    return "that of all" if abs(read - full) < 1e-4 * full else f"{read / full:.2f} of it"


@belief("a full state dict of FSDP2 is one all-gather per parameter", "2 _allgather_base_")
def fsdp_state_dict() -> str:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model = _sharded()
    options = StateDictOptions(full_state_dict=True)
    return operators(lambda: get_model_state_dict(model, options=options))


@belief("with cpu_offload=True, rank 0 alone holds the full state dict", "rank 0 alone")
def fsdp_state_dict_offloaded() -> str:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    held = len(get_model_state_dict(_sharded(), options=options))
    is_right = held == 2 if dist.get_rank() == 0 else held == 0
    return "rank 0 alone" if is_right else f"{held} tensors"


@belief("FSDP2: optimizer.step() with Adam exchanges nothing", "nothing", THEORY)
def fsdp_adam() -> str:
    model = _sharded()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        _pass(model)
        optimizer.step()
    _pass(model)
    return operators(optimizer.step)


@belief("tensor parallel, column then row: one all-reduce in forward", "allreduce_", SEEN)
def tensor_parallel_forward() -> str:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), _mesh(), plan)
    return operators(lambda: model(torch.ones(2, 8)) + 1)


@belief(
    "tensor parallel, column then row: one all-reduce in backward even if inputs need no gradient",
    "allreduce_",
    SEEN,
)
def tensor_parallel_backward() -> str:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), _mesh(), plan)
    loss = model(torch.ones(2, 8)).sum()
    return operators(loss.backward)


@belief(
    "loss_parallel's cross entropy is two all-reduces in forward: maximum and sum",
    "2 allreduce_",
    SEEN,
)
def loss_parallel() -> str:
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    logits = DTensor.from_local(torch.randn(4, 3), _mesh(), [Shard(1)])

    def call() -> None:
        with loss_parallel():
            float(nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long)).to_local())

    return operators(call)


@belief(
    "async_save's collectives are issued by the calling thread, before it returns", "the caller"
)
def async_save_thread() -> str:
    from torch.distributed import checkpoint

    threads: set[bool] = set()
    main = threading.get_ident()
    names = ("all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list")
    for name in names:
        original = getattr(dist, name)

        def noted(*args: Any, original: Any = original, **options: Any) -> Any:
            threads.add(threading.get_ident() == main)
            return original(*args, **options)

        setattr(dist, name, noted)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.async_save({"weight": torch.ones(4)}, checkpoint_id=f"{folder}/c").result()
    return {frozenset({True}): "the caller", frozenset({False}): "another thread"}.get(
        frozenset(threads), f"both {sorted(threads)}"
    )


@belief(
    "GPipe, 2 stages, 4 micro batches: 4 sends forward and 4 back, from the first step on",
    "4 send, 4 recv_",
)
def pipeline() -> str:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    stage = PipelineStage(nn.Linear(8, 8), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(
        stage, 4, loss_fn=lambda output, target: (output - target).square().sum()
    )
    tensor = torch.ones(8, 8)

    def call() -> None:
        schedule.step(tensor) if rank == 0 else schedule.step(target=tensor)

    seen = operators(call)
    parts = sorted(seen.split(", "))
    return "4 send, 4 recv_" if parts == ["4 recv_", "4 send"] else ", ".join(parts)


@belief(
    "GPipe, 2 stages, 4 micro batches: 4 sends forward and 4 back, from the second step on",
    "4 send, 4 recv_",
)
def pipeline_second_step() -> str:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    stage = PipelineStage(nn.Linear(8, 8), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(
        stage, 4, loss_fn=lambda output, target: (output - target).square().sum()
    )
    tensor = torch.ones(8, 8)

    def call() -> None:
        schedule.step(tensor) if rank == 0 else schedule.step(target=tensor)

    call()
    parts = sorted(operators(call).split(", "))
    return "4 send, 4 recv_" if parts == ["4 recv_", "4 send"] else ", ".join(parts)


@belief(
    "without overlap, ZeroRedundancyOptimizer's step issues broadcasts only",
    "2 broadcast_",
    "commprof/workloads/strategies/zero1.py",
)
def zero_step() -> str:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    )
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    return operators(optimizer.step)


@belief("dist.checkpoint's load of a missing key raises an Exception", "an Exception")
def load_of_missing_key() -> str:
    from torch.distributed import checkpoint

    shared: list[Any] = [tempfile.mkdtemp()]
    dist.broadcast_object_list(shared, 0)
    checkpoint.save({"weight": torch.ones(4)}, checkpoint_id=shared[0])
    try:
        checkpoint.load({"other": torch.ones(4)}, checkpoint_id=shared[0])
    except Exception:
        return "an Exception"
    except BaseException as error:
        return f"{type(error).__name__}, which `except Exception` does not catch"
    return "works"


@belief(
    "FSDP2: a forward after optimizer.step() always uses the new weights",
    "0.0",
    THEORY,
)
def fsdp_forward_before_step() -> str:
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    fully_shard(model, mesh=_mesh())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tensor = torch.ones(1, 4)
    model(tensor).sum().backward()
    with torch.no_grad():
        model(tensor)
        optimizer.step()
        return str(model(tensor)[0, 0].item())


@belief(
    "FSDP2: a training pass after validation exchanges as often as other passes",
    "3 _allgather_base_, 2 _reduce_scatter_base_",
    SHARDED,
)
def fsdp_pass_after_validation() -> str:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    fully_shard(model[0], mesh=_mesh())
    fully_shard(model, mesh=_mesh())
    _pass(model)
    with torch.no_grad():
        model(torch.ones(2, 16))
    return operators(lambda: _pass(model))


@belief("FSDP2 issues its gathers and reduce-scatters as asynchronous calls", "all", SHARDED)
def fsdp_is_asynchronous() -> str:
    flags: list[bool] = []

    def noted(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            flags.append(options.get("async_op", False))
            return original(*args, **options)

        return call

    names = ("all_gather_into_tensor", "reduce_scatter_tensor")  # until 2.12
    for name in (*names, "all_gather_single", "reduce_scatter_single"):
        if hasattr(dist, name):
            setattr(dist, name, noted(getattr(dist, name)))
    _pass(_sharded())
    return {frozenset({True}): "all", frozenset({False}): "none"}.get(frozenset(flags), str(flags))


@belief("FSDP1 trains on CPUs over gloo", "works")
def fsdp1_on_cpus() -> str:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return outcome(lambda: _pass(FullyShardedDataParallel(nn.Linear(16, 16))))


@belief("HSDP: each layer is one reduce-scatter and one all-reduce", "2, 2", SHARDED, ranks=4)
def hybrid_pass() -> str:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    mesh = _mesh(2, 2, names=("replicate", "shard"))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    _pass(model)
    seen = operators(lambda: _pass(model))
    return "2, 2" if seen.endswith("2 _reduce_scatter_base_, 2 allreduce_") else seen


@belief("tensors that all ranks hold are written to a checkpoint by rank 0", "rank 0")
def writer_of_replicated() -> str:
    from torch.distributed import checkpoint

    shared: list[Any] = [tempfile.mkdtemp()]
    dist.broadcast_object_list(shared, 0)
    weights = {f"weight {number}": torch.ones(400, 400) for number in range(6)}
    checkpoint.save(weights, checkpoint_id=shared[0])
    files = sorted(Path(shared[0]).glob("*.distcp"))
    sizes = [file.stat().st_size for file in files]
    return "rank 0" if len(sizes) == 1 else f"shared among ranks: {sizes[0] / sum(sizes):.0%} each"


@belief("with plan caching the second save has fewer collectives than the first", "fewer")
def cached_plans() -> str:
    from torch.distributed import checkpoint

    shared: list[Any] = [tempfile.mkdtemp()]
    dist.broadcast_object_list(shared, 0)
    seen = []
    for number in range(2):
        planner = checkpoint.DefaultSavePlanner(enable_plan_caching=True)
        target = f"{shared[0]}/{number}"

        def save(planner: Any = planner, target: str = target) -> None:
            checkpoint.save({"weight": torch.ones(4)}, checkpoint_id=target, planner=planner)

        seen.append(operators(save))
    return "as many" if seen[0] == seen[1] else "fewer"


@belief("async_save's collectives run over a separate group", "another group", SEEN)
def async_save_group() -> str:
    from torch.distributed import checkpoint

    number = dist.group.WORLD._get_sequence_number_for_group
    before = number()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.async_save({"weight": torch.ones(4)}, checkpoint_id=f"{folder}/c").result()
    return "the default group" if number() > before else "another group"


@belief(
    "interleaved 1F1B on 2 ranks, with 2 stages on each, sends over all 3 stage boundaries",
    "12 send, 12 recv_",
)
def interleaved_pipeline() -> str:
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    rank = dist.get_rank()
    device = torch.device("cpu")
    stages = [PipelineStage(nn.Linear(8, 8), rank + shift, 4, device) for shift in (0, 2)]
    schedule = ScheduleInterleaved1F1B(
        stages, 4, loss_fn=lambda output, target: (output - target).square().sum()
    )
    tensor = torch.ones(8, 8)

    def call() -> None:
        schedule.step(tensor) if rank == 0 else schedule.step(target=tensor)

    call()
    parts = sorted(operators(call).split(", "), reverse=True)
    return ", ".join(parts)
