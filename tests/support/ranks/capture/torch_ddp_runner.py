"""Runs one of PyTorch's own DDP tests by its NAME; ``--list`` prints the names.

PyTorch's tests need BACKEND, WORLD_SIZE and TEMP_DIR in the environment.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import unittest
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.capture import expecttest_stand_in

expecttest_stand_in.install()

from torch.distributed import rpc  # noqa: E402
from torch.testing._internal.common_distributed import MultiProcessTestCase  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

TRACES_VARIABLE = "COMMPROF_TEST_TRACES"
_DDP = re.compile(r"DistributedDataParallel|[._ (]ddp|_test_ddp|_test_DDP", re.IGNORECASE)


class _Ranks:
    """Must be the first base class, to replace the start of ranks in the other base classes."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo", __name__])
        self._start_processes(context.Process)  # type: ignore[attr-defined]

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **options: Any) -> None:
        if os.environ.get(TRACES_VARIABLE):
            _attach_everywhere(os.environ[TRACES_VARIABLE])
        super()._run(rank, test_name, file_name, pipe, **options)  # type: ignore[misc]


class DdpTest(
    _Ranks, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    """PyTorch's ``test_distributed_spawn.py`` has this class without ``_Ranks``."""


CLASSES: dict[str, type[unittest.TestCase]] = {}
"""Tests over RPC; PyTorch's ``test_tensorpipe_agent.py`` has these classes without ``_Ranks``."""

if rpc.is_available():
    from torch.testing._internal.distributed import ddp_under_dist_autograd_test
    from torch.testing._internal.distributed.rpc import rpc_test
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (
        TensorPipeRpcAgentTestFixture,
    )

    for _tests in (
        ddp_under_dist_autograd_test.DdpUnderDistAutogradTest,
        ddp_under_dist_autograd_test.DdpComparisonTest,
        ddp_under_dist_autograd_test.CudaDdpComparisonTest,
        rpc_test.RpcTest,
    ):
        _name = _tests.__name__
        _bases = (_Ranks, _tests, TensorPipeRpcAgentTestFixture, MultiProcessTestCase)
        # The ranks unpickle the class by its name in this module.
        CLASSES[_name] = globals()[_name] = type(_name, _bases, {"__module__": __name__})


def _attach_everywhere(directory: str) -> None:
    from commprof.capture.boot import arm

    arm(directory)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        import commprof

        original(self, *args, **kwargs)
        commprof.attach(self)

    DistributedDataParallel.__init__ = made


def names() -> list[str]:
    found = _names_in(DdpTest)
    for name, tests in CLASSES.items():
        found += [f"{name}.{test}" for test in _names_in(tests)]
    return found


def _names_in(tests: type) -> list[str]:
    return [
        name
        for name, function in inspect.getmembers(tests, inspect.isfunction)
        if name.startswith("test_") and _DDP.search(name + inspect.getsource(function))
    ]


def case_of(name: str) -> unittest.TestCase:
    tests, _, test = name.rpartition(".")
    return CLASSES[tests](test) if tests else DdpTest(test)


def main() -> None:
    if sys.argv[1] == "--list":
        print("\n".join(names()))
        return
    result = unittest.TestResult()
    case_of(sys.argv[1]).run(result)
    for _, text in [*result.errors, *result.failures]:
        print(text, file=sys.stderr)
    if result.errors or result.failures or result.unexpectedSuccesses:
        print("failed")
    elif result.skipped:
        print("skipped")
    else:
        print("passed")
    traces = os.environ.get(TRACES_VARIABLE)
    if traces:
        count = len(list(Path(traces).rglob("rank_*.trace")))
        print(f"{count} traces", file=sys.stderr)


if __name__ == "__main__":
    # The ranks unpickle the class from its module, not from __main__.
    sys.modules.pop("tests.support.ranks.capture.torch_ddp_runner", None)
    import tests.support.ranks.capture.torch_ddp_runner as module

    module.main()
