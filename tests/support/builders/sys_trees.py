"""Sample trees of what the kernel says of a machine's processors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_CPU = "sys/devices/system/cpu"


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root: Path, nodes: int, cores: int, threads: int) -> None:
    """``cores`` of each node, numbered node by node; then once more for each further thread."""
    total = nodes * cores
    write(root, {f"{_CPU}/online": f"0-{total * threads - 1}\n"})
    for node in range(nodes):
        mine = range(node * cores, (node + 1) * cores)
        cpus = [core + thread * total for thread in range(threads) for core in mine]
        listed = ",".join(map(str, cpus))
        write(root, {f"sys/devices/system/node/node{node}/cpulist": f"{listed}\n"})
        for core in mine:
            siblings = [core + thread * total for thread in range(threads)]
            text = ",".join(map(str, siblings)) + "\n"
            write(root, {f"{_CPU}/cpu{cpu}/topology/core_cpus_list": text for cpu in siblings})
