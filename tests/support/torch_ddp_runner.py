"""Runs one of PyTorch's own DDP tests: NAME, or --list for their names.

Needs BACKEND, WORLD_SIZE and TEMP_DIR in the environment, as PyTorch's own runner sets them. With
COMMPROF_TEST_TRACES capture runs in every rank and is attached to every DDP model. The ranks are
forked from a server that has imported torch once.
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

from tests.support import expecttest_stand_in

expecttest_stand_in.install()

from torch.testing._internal.distributed import distributed_test  # noqa: E402

TRACES_VARIABLE = "COMMPROF_TEST_TRACES"
_DDP = re.compile(r"DistributedDataParallel|[._ (]ddp|_test_ddp|_test_DDP", re.IGNORECASE)


class DdpTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests, as ``test_distributed_spawn.py`` of the PyTorch repository makes them."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo", __name__])
        self._start_processes(context.Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **options: Any) -> None:
        if os.environ.get(TRACES_VARIABLE):
            _attach_everywhere(os.environ[TRACES_VARIABLE])
        super()._run(rank, test_name, file_name, pipe, **options)


def _attach_everywhere(directory: str) -> None:
    from commprof.boot import arm

    arm(directory)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        import commprof

        original(self, *args, **kwargs)
        commprof.attach(self)

    DistributedDataParallel.__init__ = made


def names() -> list[str]:
    """Tests whose name or body has to do with DDP."""
    found = []
    for name, function in inspect.getmembers(DdpTest, inspect.isfunction):
        if name.startswith("test_") and _DDP.search(name + inspect.getsource(function)):
            found.append(name)
    return found


def main() -> None:
    """Prints "passed", "failed" or "skipped" last."""
    if sys.argv[1] == "--list":
        print("\n".join(names()))
        return
    result = unittest.TestResult()
    case = DdpTest(sys.argv[1])
    case.run(result)
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
    sys.modules.pop("tests.support.torch_ddp_runner", None)
    import tests.support.torch_ddp_runner as module

    module.main()
