"""Machine profile: a file with the fitted costs of collectives and compressors."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commprof.errors import CommprofError
from commprof.files import checked, plain, read_json, replace_file
from commprof.forecast.costs.algorithms import canonical
from commprof.forecast.costs.cost_model import LINKS, OTHER_HOST, SAME_HOST, CostCurve
from commprof.forecast.costs.hook_costs import HookCost
from commprof.invocation import quoted

SCHEMA_VERSION = 1
KIND = "commprof machine profile"


@dataclass(frozen=True)
class LinkProfile:
    """Fitted costs of collectives on links of one class: within a host, or between hosts."""

    curves: Mapping[str, CostCurve]
    #: Rate and one-way latency of the link, as the user states them; NaN if not stated.
    bytes_per_s: float = math.nan
    latency_s: float = math.nan


@dataclass(frozen=True)
class MachineProfile:
    """Fitted costs of one machine, or of equal machines."""

    links: Mapping[str, LinkProfile]
    hooks: Mapping[str, HookCost] = field(default_factory=dict)
    #: Files and runs to which the costs were fitted.
    sources: Sequence[str] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""

    def expected_s(self, op: str, size_bytes: int, ranks: int, same_host: bool) -> float:
        """Returns the time of a call in s; NaN if the operation has no curve on this link."""
        link = self.links.get(SAME_HOST if same_host else OTHER_HOST)
        curve = None if link is None else link.curves.get(canonical(op))
        return math.nan if curve is None else curve.time_s(size_bytes, ranks)

    def unlike(self, link: str, backend: str) -> str:
        """Returns the reason why the costs do not apply to a job.

        Args:
            link: ``SAME_HOST`` or ``OTHER_HOST``.
            backend: the job's backend, such as ``gloo`` or ``cpu:gloo,cuda:nccl``.

        Returns:
            A clause that follows the words "the profile"; empty if the costs may apply.
        """
        curves = self.links[link].curves.values() if link in self.links else ()
        if not curves:
            return f"has no costs {'within a host' if link == SAME_HOST else 'between hosts'}"
        backends = {curve.backend for curve in curves}
        if not any(_plain_names(name) & _plain_names(backend) for name in backends):
            return f"is of {', '.join(sorted(backends))}, but the job used {backend}"
        return ""


def _plain_names(backend: str) -> set[str]:
    """Returns backends without their devices: gloo and nccl for ``cpu:gloo,cuda:nccl``."""
    return {name.rpartition(":")[2] for name in backend.split(",")}


def default_path() -> Path:
    """Returns ``commprof/machine_profile.json`` in the user's configuration directory (XDG)."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "commprof" / "machine_profile.json"


def save_profile(profile: MachineProfile, path: Path) -> None:
    """Writes the profile atomically.

    Raises:
        CommprofError: the file cannot be written.
    """
    document = {"kind": KIND, "schema_version": SCHEMA_VERSION, **dataclasses.asdict(profile)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(plain(document), indent=1) + "\n")
    except OSError as error:
        raise CommprofError(
            f"cannot write {quoted(path)}: {error.strerror}; name another file"
        ) from None


def load_profile(path: Path) -> MachineProfile:
    """Reads a profile.

    Raises:
        CommprofError: the file cannot be read, is not a machine profile, is damaged, or is of an
            unsupported version.
    """
    try:
        document = read_json(path)
    except OSError as error:
        raise CommprofError(
            f"machine profile {quoted(path)} cannot be read: {error.strerror}; write one with "
            "commprof fit"
        ) from None
    except ValueError as error:
        raise CommprofError(
            f"{quoted(path)} is not a machine profile: {error}; write one with commprof fit"
        ) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise CommprofError(f"{quoted(path)} is not a machine profile; write one with commprof fit")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise CommprofError(
            f"{quoted(path)} is a machine profile of version {document.get('schema_version')} "
            f"(supported: {SCHEMA_VERSION}); write it again with commprof fit"
        )
    try:
        profile: MachineProfile = checked(document, MachineProfile)
        for name, link in profile.links.items():
            if name not in LINKS:
                raise ValueError(f"unknown link class {name!r} (allowed: {', '.join(LINKS)})")
            if not all(curve.pieces and curve.world_sizes for curve in link.curves.values()):
                raise ValueError(f"a curve of links.{name} has no pieces or no world_sizes")
        return profile
    except ValueError as error:
        raise CommprofError(
            f"{quoted(path)} is a damaged machine profile: {error}; write it again with "
            "commprof fit"
        ) from None
