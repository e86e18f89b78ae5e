from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch.autograd import Variable

from commprof.capture.python_hook import PythonBucketHook
from commprof.trace.schema import Kind


class Recorded:
    def __init__(self) -> None:
        self.order: list[object] = []

    def group_id(self, group: object) -> int:
        return 1

    def size(self) -> int:
        return 2

    def record_finalize(self, kind: Kind, graph_task: int) -> None:
        self.order.append(kind)


@pytest.mark.parametrize("models", [1, 2, 3])
def test_one_finalisation_holds_those_of_all_models_of_a_pass(models: int) -> None:
    recorded = Recorded()
    engine = Variable._execution_engine
    value = torch.ones(1, requires_grad=True)
    for model in range(models):
        hook = PythonBucketHook(recorded, cast(Any, recorded))
        value = value * 2

        def launched(_: torch.Tensor, hook: PythonBucketHook = hook, model: int = model) -> None:
            hook._bracket_finalize()
            engine.queue_callback(lambda: recorded.order.append(model))

        value.register_hook(launched)
    for _ in range(2):
        value.sum().backward(retain_graph=True)
    whole = [Kind.FINALIZE_BEGIN, *reversed(range(models)), Kind.FINALIZE_END]
    assert recorded.order == 2 * whole
