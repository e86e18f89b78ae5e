"""Checks commprof's profiler plugin with NVIDIA's NCCL libraries, without a GPU.

A function of the NCCL library, ``getNcclProfiler_v<N>``, loads the plugin and returns an adapter.
The adapter takes events in the library's own layout, and passes them to the plugin in the layout of
version N. The same calls are played to each adapter (``tests/cpp/nccl_plugin``), and the plugin's
trace is compared with the calls.

A logging plugin of version N is then loaded twice: by NCCL directly, and by commprof's plugin. It
must log the same calls both times.

    make nccl-matrix
    python -m tools.nccl_matrix --keep DIR 2.28.9 2.30.7

Prints a Markdown table, and each error on stderr. Exits with 1 if there is an error.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.support.machines.core_tests import build
from tests.support.nccl_runs import (
    Operation,
    Played,
    Times,
    differences,
    logged,
    of_unknown_size,
    play,
    played,
    recorded,
)

#: For each version of the interface, a release that chooses it; and the newest release.
RELEASES = ("2.26.2", "2.27.5", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3")
OLDEST = 3
COMMPROF = "libnccl-profiler-commprof.so"
PLACE = {"RANK": "0", "WORLD_SIZE": "2"}


def main() -> int:
    """Checks each library with each version of the interface that the library can request."""
    parser = argparse.ArgumentParser(description="Plays NCCL's calls through NVIDIA's libraries.")
    parser.add_argument("releases", nargs="*", default=RELEASES, metavar="RELEASE")
    parser.add_argument("--keep", type=Path, help="keep the wheels in this folder (2.1 GB for all)")
    options = parser.parse_args()
    logging = [f"logging-v{version}" for version in range(OLDEST, 8)]
    tree = build("", "test_nccl_plugin", "nccl-profiler-commprof", *logging)
    wrong: list[str] = []
    heads = "collectives | messages | replays | times | unknown ends | passed on"
    print(f"| NCCL | interface | {heads} |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = options.keep or Path(scratch)
        for release in options.releases:
            library = library_of(release, wheels, Path(scratch))
            addresses = loaders(library)
            newest = max(addresses)
            for version, address in addresses.items():
                row, lines = one_pair(tree, library, address, version, newest)
                same, more = passed_on(tree, library, addresses, version)
                star = " *" * (version == newest)
                print(f"| {release} | v{version}{star} | {row} | {same} |", flush=True)
                wrong += [f"NCCL {release}, v{version}: {line}" for line in lines + more]
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


def loaders(library: Path) -> dict[int, str]:
    """Returns the address of the loader of each interface version that a library can request."""
    command = ["readelf", "--syms", "--wide", str(library)]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"([0-9a-f]+)\s+\d+\s+FUNC\b.*\b_Z18getNcclProfiler_v(\d+)Pv$"
    addresses = {int(m[2]): m[1] for m in re.finditer(pattern, symbols, re.MULTILINE)}
    return {version: addresses[version] for version in sorted(addresses) if version >= OLDEST}


def through(
    tree: Path, plugin: str, library: Path, address: str, newest: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Plays calls to a plugin through a library's loader; if LOGGED is set, all kinds of events."""
    arguments = ["through", library, tree / plugin, address, newest]
    arguments += ["all"] * ("LOGGED" in environment)
    return play(tree / "test_nccl_plugin", *arguments, check=False, **PLACE, **environment)


def passed_on(
    tree: Path, library: Path, addresses: dict[int, str], version: int
) -> tuple[str, list[str]]:
    """Compares what a logging plugin logs behind commprof's plugin and without commprof.

    Returns: The number of equal lines, as a cell of the table, and the errors.
    """
    newest = max(addresses)
    name = f"liblogging-v{version}.so"
    with tempfile.TemporaryDirectory() as out:
        alone, behind = Path(out) / "alone", Path(out) / "behind"
        through(tree, name, library, addresses[version], newest, LOGGED=str(alone))
        done = through(
            *(tree, COMMPROF, library, addresses[newest], newest),
            LOGGED=str(behind),
            COMMPROF_OUT=out,
            COMMPROF_NCCL_PLUGIN=str(tree / name),
        )
        # commprof does not convert events to this version's fields
        if version < newest and version == OLDEST:
            said = "the plugin has no table of versions" in done.stderr
            return "no", [] if said else [done.stderr]
        heard, expected = (Counter("\n".join(logged(log)).split("\n")) for log in (behind, alone))
    same = (heard & expected).total()
    wrong = [] if heard == expected else ["calls differ from those without commprof"]
    return f"{same}/{expected.total()}", wrong


def one_pair(
    tree: Path, library: Path, address: str, version: int, newest: int
) -> tuple[str, list[str]]:
    """Plays the calls once; returns the cells of the table's row, and the errors."""
    with tempfile.TemporaryDirectory() as out:
        done = through(tree, COMMPROF, library, address, newest, COMMPROF_OUT=out)
        if done.returncode != 0:
            return "failed | | | |", [done.stderr.strip() or f"exit code {done.returncode}"]
        _, found = recorded(Path(out) / "rank_0.trace")
    expected = as_told(played(done.stdout), version, newest)
    return cells(expected, found, version), differences(expected, found, on_gpu=version >= 4)


def as_told(
    all_played: dict[Operation, Played], version: int, newest: int
) -> dict[Operation, Played]:
    """Returns the played operations as the plugin can see them in a version of the interface.

    Below version 5, the plugin sees no API calls, so replays are counted like all other operations.
    In version 3 the plugin does not see the number of ranks. Behind the adapter of a newer library,
    it does not see the communicator either.
    """
    result = {}
    count: Counter[tuple[str, int]] = Counter()
    for operation, times in all_played.items():
        seen = operation
        if version < 5:
            message = operation.op in ("send", "recv")
            key = (operation.op, operation.peer) if message else ("", 0)
            group = operation.group.removesuffix(" replays")
            seen = replace(operation, group=group, seq=count[key])
            count[key] += 1
        if version == 3:
            seen = of_unknown_size(seen)
            seen = seen if newest == 3 else replace(seen, group="0" * 16)
        result[seen] = times
    return result


def cells(expected: dict[Operation, Played], found: dict[Operation, Times], version: int) -> str:
    """Returns cells such as "3/4": of 4 operations, 3 were recorded as they were played."""

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
