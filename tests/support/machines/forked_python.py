"""For each script, forks a Python that has imported torch: a cold start would take seconds.

A child leaves ``_serve`` and runs the script at the top level, so that exceptions and exit codes
are those of ``python script.py``.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import sys
from typing import Any

import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel
import torch.optim

from tests.support.machines import becoming

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def _serve() -> dict[str, Any]:
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            answer = _reaped(request["reap"])
        else:
            pid = os.fork()
            if pid == 0:
                return request
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)
    os._exit(0)


def _reaped(pid: int) -> dict[str, Any]:
    done, status = os.waitpid(pid, os.WNOHANG)
    return {"code": os.waitstatus_to_exitcode(status) if done else None}


def _become(request: dict[str, Any]) -> None:
    if request["cgroup"]:
        with open(f"{request['cgroup']}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    if request["netns"]:
        with open(f"/var/run/netns/{request['netns']}") as file:
            if _LIBC.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {request['netns']}")
    if request["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"],) * 2)
    becoming.forget_other_capture({**os.environ, **request["environment"]})
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        file_number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file_number, number)
    if request["uid"]:
        os.setuid(request["uid"])
    torch.set_num_threads(1)
    sys.argv = request["arguments"]


becoming.import_commprof()
becoming.keep_reducers()
becoming.freeze()
_request = _serve()
_become(_request)
if _request["module"]:
    from commprof import wrap

    wrap.main()
else:
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
