"""One-line description of a run's setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commprof.analysis.cores import usable_cores
from commprof.text import counted


def setup_text(context: Mapping[str, Any]) -> str:
    """Describes the versions, the machine and the training options of a run in one line."""
    if "recorded_by" in context:
        return f"{_backend(context)}, recorded by {context['recorded_by']}"
    machine = context["machine"]
    cores = f"{usable_cores(machine)} usable cores ({machine['cpu_model']})"
    if context["capture"] == "nccl":  # torch's version and threads are not recorded by the plugin
        return f"{_backend(context)}, recorded by commprof's plugin of NCCL, {cores}"
    return (
        f"{_training(context)}{_backend(context)}, torch {context['torch']}, "
        f"{context['capture']} capture, {counted(context['threads_per_rank'], 'thread')} per rank"
        f"{_source(context)}{_pinned(context)}, "
        f"{cores}"
    )


def _backend(context: Mapping[str, Any]) -> str:
    return f"backend {context['backend'] or 'not known'}"


def _source(context: Mapping[str, Any]) -> str:
    source = context.get("threads_source")
    return f" ({source})" if source in ("auto", "OMP_NUM_THREADS") else ""


def _pinned(context: Mapping[str, Any]) -> str:
    worlds = (context.get("pinning") or {}).get("worlds") or {}
    if not worlds:
        return ""
    largest = worlds[max(worlds, key=int)]
    return "" if largest["mode"] == "none" else f" pinned ({largest['mode']})"


def _training(context: Mapping[str, Any]) -> str:
    words = [f"{context['scaling']} scaling"] if "scaling" in context else []
    strategy = context.get("strategy") or "ddp"
    if strategy != "ddp":
        words.append(f"strategy {strategy}")
    for name, value in (context.get("training") or {}).items():
        spoken = name.replace("_", " ")
        words.append(spoken if value is True else f"{spoken} {value}")
    return "".join(f"{word}, " for word in words)
