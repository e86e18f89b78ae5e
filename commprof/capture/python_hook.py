"""DDP hook in Python, used if the native module is missing.

It makes the same records as the native module's hook, but is slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from commprof.trace import schema
from commprof.trace.schema import Kind


class PythonBucketHook:
    """Records buckets, their all-reduces, and when DDP finalises each backward pass."""

    #: Id of the last backward pass in which any model's hook ran; -1 before the first pass.
    _last_pass = -1

    def __init__(self, recorder: Any, group: dist.ProcessGroup) -> None:
        """``recorder`` is a ``PythonRecorder``; ``group`` is the model's process group."""
        self.recording = True
        self._recorder = recorder
        self._group = group
        self._group_id = recorder.group_id(group)
        self._world_size = group.size()
        self._inner: tuple[Callable[[Any, Any], Any], Any] | None = None

    @classmethod
    def attach(cls, ddp: Any, recorder: Any, hook: Any, state: Any) -> PythonBucketHook:
        """Registers a new hook with ``ddp``, and returns the new hook, which calls ``hook``."""
        self = cls(recorder, ddp.process_group)
        self.set_hook(hook, state)
        dist._register_comm_hook(ddp.reducer, None, self._run)
        return self

    def set_hook(self, hook: Any, state: Any) -> None:
        """Sets the inner hook, which this hook calls; None stands for a mean all-reduce."""
        self._inner = None if hook is None else (hook, state)

    def _run(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        recorder = self._recorder
        # Counted even while recording is off, so that all ranks have the same numbers.
        seq = recorder.next_seq(self._group_id)
        if not (self.recording and recorder.enabled()):
            return self._exchange(bucket, None)
        ready_ns = recorder.now_ns()
        op_id = recorder.next_op_id()
        size_bytes = _size_bytes(bucket.buffer())
        graph_task = self._bracket_finalize()
        issue_ns = recorder.now_ns()
        future = self._exchange(bucket, self._completion(op_id, bucket.index()))
        common = {"op_id": op_id, "bytes_in": size_bytes, "aux": bucket.index()}
        recorder.record(
            Kind.BUCKET,
            ready_ns,
            value=recorder.now_ns(),
            bytes_out=_signature(bucket),
            group=self._group_id,
            seq=seq,
            flags=schema.FLAG_LAST_BUCKET if bucket.is_last() else 0,
            **common,
        )
        recorder.record(
            Kind.ISSUE,
            issue_ns,
            op_id=op_id,
            op=schema.OPS.index("all_reduce" if self._inner is None else "other"),
            group=self._group_id,
            seq=seq,
            bytes_in=size_bytes,
            bytes_out=size_bytes,
            flags=schema.FLAG_SPARSE if bucket.buffer().is_sparse else 0,
            value=graph_task + 1,
        )
        return future

    def _completion(self, op_id: int, bucket_index: int) -> Callable[[], None]:
        def completed() -> None:
            now_ns = self._recorder.now_ns()
            if self._recorder.enabled():
                self._recorder.record(Kind.END, now_ns, op_id=op_id)
                self._recorder.record(Kind.BUCKET_END, now_ns, op_id=op_id, aux=bucket_index)

        return completed

    def _exchange(
        self, bucket: dist.GradBucket, completed: Callable[[], None] | None
    ) -> torch.futures.Future[torch.Tensor]:
        if self._inner is not None:
            hook, state = self._inner
            result: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            if completed is not None:
                # The callback must wait for the GIL, so it may record a late end.
                result.add_done_callback(lambda _: completed())
            return result
        buffer = bucket.buffer().mul_(1.0 / self._world_size)

        def first(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            if completed is not None:
                completed()
            return done.value()[0]

        mean: torch.futures.Future[torch.Tensor] = (
            self._group.allreduce([buffer]).get_future().then(first)
        )
        return mean

    def _bracket_finalize(self) -> int:
        """Records when DDP finalises the current backward pass.

        Returns the id of the backward pass, autograd's graph task; -1 outside of a backward pass.
        """
        graph_task: int = torch._C._current_graph_task_id()
        if graph_task in (-1, PythonBucketHook._last_pass):
            return graph_task
        PythonBucketHook._last_pass = graph_task
        engine = Variable._execution_engine

        def begin() -> None:
            self._recorder.record_finalize(Kind.FINALIZE_BEGIN, graph_task)
            engine.queue_callback(end)

        def end() -> None:
            self._recorder.record_finalize(Kind.FINALIZE_END, graph_task)

        engine.queue_callback(begin)
        return graph_task


class ManualFinalize:
    """Records when a script calls ``ddp.finalize_backward()``.

    The methods have the names of the native module's functions, which they replace.
    """

    def __init__(self, recorder: Any) -> None:
        """``recorder`` is a ``PythonRecorder``."""
        self._recorder = recorder

    def begin_manual_finalize(self) -> None:
        """Records that DDP begins to finalise a backward pass."""
        self._record(Kind.FINALIZE_BEGIN)

    def end_manual_finalize(self) -> None:
        """Records that DDP has finalised a backward pass."""
        self._record(Kind.FINALIZE_END)

    def _record(self, kind: Kind) -> None:
        if PythonBucketHook._last_pass >= 0:
            self._recorder.record_finalize(
                kind, PythonBucketHook._last_pass, schema.FLAG_MANUAL_FINALIZE
            )


def _size_bytes(buffer: torch.Tensor) -> int:
    """Returns a tensor's size in bytes; ``nbytes`` of a sparse tensor would raise."""
    if buffer.is_sparse:
        return int(buffer._indices().nbytes + buffer._values().nbytes)
    return int(buffer.nbytes)


def _signature(bucket: dist.GradBucket) -> int:
    """Hashes the parameters' shapes, as ``csrc/torch/capture/ddp/ddp_hook.cpp`` does."""
    value = 0xCBF29CE484222325
    for parameter in bucket.parameters():
        for number in (parameter.dim(), *parameter.shape):
            value = ((value ^ number) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
