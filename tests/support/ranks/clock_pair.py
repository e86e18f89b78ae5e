from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from commprof._native import native, native_error
from tests.support.builders import trace_bytes

_TRIAL_S = 0.3


def answer(address: str) -> None:
    assert native_error is None
    port, token = native.clock_serve(address, 4711, 2)
    print(json.dumps([port, token]), flush=True)
    sys.stdin.read()


def ask(address: str, port: str, token: str, trials: str, directory: str) -> None:
    assert native_error is None
    metadata = json.dumps(trace_bytes.metadata())
    for trial in range(int(trials)):
        native.start(str(Path(directory) / f"trial_{trial}.trace"), "", metadata, trial + 1)
        native.clock_follow(address, int(port), int(token), 1)
        time.sleep(_TRIAL_S)
        native.clock_unfollow()
        native.stop()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
