"""Plays NCCL's calls through the loaders and adapters of NVIDIA's own libraries to the plugin.

No GPU is needed. For each wheel of nvidia-nccl-cu12 the library is loaded, and its internal
``getNcclProfiler_v<N>``, whose address is in its symbol table, is given the plugin. What this
returns takes events in the library's own layout and passes them on in that of version N. The same
calls are played to it each time (``tests/cpp/nccl_plugin``), and the trace is compared with them.

    make nccl-matrix
    python -m tools.nccl_matrix --keep DIR 2.28.9 2.30.7

Prints a Markdown table, and on stderr what was wrong. Exits with 1 if anything was.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.machines.core_tests import build
from tests.support.nccl_runs import Operation, Played, Times, differences, played, recorded

#: The first release of each version of the interface that could be had, and the newest.
RELEASES = ("2.26.2", "2.27.5", "2.28.9", "2.29.7", "2.30.7", "2.32.3")
OLDEST = 3
PLACE = {"RANK": "0", "WORLD_SIZE": "2"}


def main() -> int:
    """Runs all pairs of a library and a version that it can ask for."""
    parser = argparse.ArgumentParser(description="Plays NCCL's calls through NVIDIA's libraries.")
    parser.add_argument("releases", nargs="*", default=RELEASES, metavar="RELEASE")
    parser.add_argument("--keep", type=Path, help="folder of the wheels, kept (1.9 GB for all)")
    options = parser.parse_args()
    tree = build("", "test_nccl_plugin", "nccl-profiler-commprof")
    wrong: list[str] = []
    print("| NCCL | interface | collectives | messages | replays | times | unknown ends |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = options.keep or Path(scratch)
        for release in options.releases:
            library = library_of(release, wheels, Path(scratch))
            for version, address, newest in loaders(library):
                row, lines = one_pair(tree, library, address, version, newest)
                print(f"| {release} | v{version}{' *' * (version == newest)} | {row} |", flush=True)
                wrong += [f"NCCL {release}, v{version}: {line}" for line in lines]
            library.unlink()
    print("\n\\* the version that this NCCL chooses")
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


def library_of(release: str, wheels: Path, scratch: Path) -> Path:
    """Fetches a wheel unless it is there, and unpacks its library."""
    pattern = f"nvidia_nccl_cu12-{release}*.whl"
    wheels.mkdir(parents=True, exist_ok=True)
    if not any(wheels.glob(pattern)):
        command = ["download", "--quiet", "--no-deps", "--dest", str(wheels)]
        package = f"nvidia-nccl-cu12=={release}"
        subprocess.run([sys.executable, "-m", "pip", *command, package], check=True)
    wheel = next(wheels.glob(pattern))
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("nvidia/nccl/lib/libnccl.so.2", scratch))


def loaders(library: Path) -> Iterator[tuple[int, str, int]]:
    """Yields each version that a library can ask for, its loader's address, and the newest."""
    command = ["readelf", "--syms", "--wide", str(library)]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"([0-9a-f]+)\s+\d+\s+FUNC\b.*\b_Z18getNcclProfiler_v(\d+)Pv$"
    addresses = {int(m[2]): m[1] for m in re.finditer(pattern, symbols, re.MULTILINE)}
    for version in sorted(addresses):
        if version >= OLDEST:
            yield version, addresses[version], max(addresses)


def one_pair(
    tree: Path, library: Path, address: str, version: int, newest: int
) -> tuple[str, list[str]]:
    """Plays the calls once; returns the cells of the table's row, and what was wrong."""
    with tempfile.TemporaryDirectory() as out:
        plugin = tree / "libnccl-profiler-commprof.so"
        arguments = ["through", str(library), str(plugin), address, str(newest)]
        done = subprocess.run(
            [str(tree / "test_nccl_plugin"), *arguments],
            env={**os.environ, **PLACE, "COMMPROF_OUT": out, "COMMPROF_NCCL": "kernels"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return "failed | | | |", [done.stderr.strip() or f"exit code {done.returncode}"]
        _, found = recorded(Path(out) / "rank_0.trace")
    expected = as_told(played(done.stdout), version, newest)
    return cells(expected, found, version), differences(expected, found, on_gpu=version >= 4)


def as_told(
    all_played: dict[Operation, Played], version: int, newest: int
) -> dict[Operation, Played]:
    """What a version of the interface can tell of the operations that were played.

    Below version 5 there are no calls, so that replays are numbered with all others. Version 3 does
    not tell the number of ranks, and through the adapters of newer libraries no communicator.
    """
    result = {}
    count: Counter[tuple[str, int]] = Counter()
    for operation, times in all_played.items():
        values = dict(vars(operation))
        if version < 5:
            values["group"] = operation.group.removesuffix(" replays")
            message = operation.op in ("send", "recv")
            key = (operation.op, operation.peer) if message else ("", 0)
            values["seq"] = count[key]
            count[key] += 1
        if version == 3:
            values["group"] = values["group"] if newest == 3 else "0" * 16
            if operation.op == "all_gather_into_tensor":
                values["bytes_out"] = 0
            elif operation.op == "reduce_scatter_tensor":
                values["bytes_in"] = 0
        result[Operation(**values)] = times
    return result


def cells(expected: dict[Operation, Played], found: dict[Operation, Times], version: int) -> str:
    """Counts what arrived with all its fields, of what was played."""

    def right(wanted: list[Operation]) -> str:
        return f"{sum(operation in found for operation in wanted)}/{len(wanted)}"

    messages = [o for o in expected if o.op in ("send", "recv")]
    replays = [o for o in expected if o.group.endswith(" replays")]
    others = [o for o in expected if o not in messages and o not in replays]
    timed = {o: t for o, t in expected.items() if t.ran.end_ns != 0 and o in found}
    wrong = len(differences(timed, {o: found[o] for o in timed}, on_gpu=version >= 4))
    times = f"{len(timed) - wrong}/{len(timed)} " + (
        "of the GPU" if version >= 4 else "of the host"
    )
    lost = [o for o, t in expected.items() if t.ran.end_ns == 0]
    unknown = sum(o in found and found[o].end_ns == 0 for o in lost)
    apart = right(replays) if version >= 5 else "as collectives"
    return " | ".join([right(others), right(messages), apart, times, f"{unknown}/{len(lost)}"])


if __name__ == "__main__":
    sys.exit(main())
