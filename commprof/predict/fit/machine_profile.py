"""The machine profile: fitted costs as a file that later commands pick up."""

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
from commprof.files import read_json, replace_file
from commprof.invocation import quoted
from commprof.predict.fit.cost_model import LINKS, CostCurve, HeldOut, Piece
from commprof.predict.fit.hook_costs import HookCost, HookFigures

SCHEMA_VERSION = 1
KIND = "commprof machine profile"


@dataclass(frozen=True)
class LinkProfile:
    """What was measured over one class of links."""

    #: By operation.
    curves: Mapping[str, CostCurve]
    #: The link's own rate and one-way latency, as the user stated them; NaN where not stated.
    bytes_per_s: float = math.nan
    latency_s: float = math.nan


@dataclass(frozen=True)
class MachineProfile:
    """Costs of one machine, or of machines like it."""

    links: Mapping[str, LinkProfile]
    hooks: Mapping[str, HookCost] = field(default_factory=dict)
    #: Files and runs that it was fitted to.
    sources: Sequence[str] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""


def default_path() -> Path:
    """``commprof/machine_profile.json`` in the user's directory for settings (XDG)."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "commprof" / "machine_profile.json"


def save_profile(profile: MachineProfile, path: Path) -> None:
    """Writes the file, whole or not at all.

    Raises:
        CommprofError: it cannot be written.
    """
    document = {"kind": KIND, "schema_version": SCHEMA_VERSION, **dataclasses.asdict(profile)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(_without_nan(document), indent=1) + "\n")
    except OSError as error:
        raise CommprofError(
            f"cannot write {quoted(path)}: {error.strerror}; name another file"
        ) from None


def load_profile(path: Path) -> MachineProfile:
    """Reads a profile.

    Raises:
        CommprofError: the file is none, or of a version not known here.
    """
    try:
        document = read_json(path)
    except (OSError, ValueError) as error:
        raise CommprofError(f"{quoted(path)} is no machine profile: {error}") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise CommprofError(f"{quoted(path)} is no machine profile; write one with commprof fit")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise CommprofError(
            f"{quoted(path)} is a machine profile of version {document.get('schema_version')} "
            f"(known: {SCHEMA_VERSION}); write it anew with commprof fit"
        )
    try:
        return _profile(document)
    except (KeyError, TypeError, ValueError) as error:
        raise CommprofError(f"{quoted(path)} is a damaged machine profile: {error!r}") from None


def _profile(document: Mapping[str, Any]) -> MachineProfile:
    links = {}
    for name, link in document["links"].items():
        if name not in LINKS:
            raise ValueError(f"unknown link class {name!r} (allowed: {', '.join(LINKS)})")
        links[name] = LinkProfile(
            {op: _curve(curve) for op, curve in link["curves"].items()},
            _number(link["bytes_per_s"]),
            _number(link["latency_s"]),
        )
    hooks = {label: _hook(hook) for label, hook in document["hooks"].items()}
    machine, sources = document["machine"], tuple(document["sources"])
    return MachineProfile(links, hooks, sources, machine, document["created"])


def _curve(value: Mapping[str, Any]) -> CostCurve:
    pieces = tuple(
        Piece(
            piece["low_bytes"],
            piece["alpha_s"],
            piece["beta_s_per_byte"],
            _pair(piece["alpha_interval_s"]),
            _pair(piece["beta_interval_s_per_byte"]),
        )
        for piece in value["pieces"]
    )
    replicates = tuple(tuple((a, b) for a, b in each) for each in value["replicates"])
    return CostCurve(
        op=value["op"],
        backend=value["backend"],
        pieces=pieces,
        step_bytes=_pair(value["step_bytes"]),
        world_sizes=tuple(value["world_sizes"]),
        gamma_s_per_byte=value["gamma_s_per_byte"],
        gamma_interval_s_per_byte=_pair(value.get("gamma_interval_s_per_byte", (None, None))),
        replicates=replicates,
        source=value["source"],
        ranks_per_core=_number(value["ranks_per_core"]),
        residual=_number(value["residual"]),
        worst_residual=_number(value["worst_residual"]),
        held_out_size=_held_out(value["held_out_size"]),
        held_out_world_size=_held_out(value["held_out_world_size"]),
    )


def _held_out(value: Mapping[str, Any] | None) -> HeldOut | None:
    return None if value is None else HeldOut(**value)


def _hook(value: Mapping[str, Any]) -> HookCost:
    lines = {name: _pair(value[name]) for name in ("encode", "reduce", "decode", "bucket_bytes")}
    numbers = {name: _number(value[name]) for name in ("ranks_per_core", "compute_s_per_byte")}
    # Not in older profiles.
    newer = {name: _number(value.get(name)) for name in ("alpha_s", "residual", "work_residual")}
    bounds = {name: _figures(value.get(name)) for name in ("low", "high")}
    replicates = tuple(filter(None, map(_figures, value.get("replicates", ()))))
    return HookCost(**{**value, **lines, **numbers, **newer, **bounds, "replicates": replicates})


def _figures(value: Mapping[str, Any] | None) -> HookFigures | None:
    if value is None:
        return None
    encode, reduce, decode = (_pair(value[name]) for name in ("encode", "reduce", "decode"))
    return HookFigures(encode, reduce, decode, _number(value["overhead_s"]))


def _pair(value: Sequence[float | None]) -> tuple[float, float]:
    low, high = value
    return _number(low), _number(high)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
