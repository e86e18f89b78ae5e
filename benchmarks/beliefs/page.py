"""The page "What PyTorch really does", made from the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.beliefs.asking import TOPICS, Belief, beliefs

_TITLES = {
    "gloo": "Collectives and messages over gloo",
    "groups": "Process groups",
    "ddp": "DistributedDataParallel",
    "sharding": "FSDP2, DTensor, meshes, pipelines, checkpoints",
    "functional": "Functional collectives and torch.compile",
    "recorders": "Flight Recorder and torch.profiler",
}

_HEAD = """\
# What PyTorch really does

Statements about PyTorch that an engineer of this field would make from memory, and that parts of
commprof rest on. Each was written down first and then tried, with torch alone, over gloo on CPUs,
on two ranks if not said otherwise. `python benchmarks/torch_beliefs.py` tries them again with the
installed torch, and `--only NAME` a single one; the code of a question, in `benchmarks/beliefs`, is
the way to see its answer. `--write` makes this page.

"""


def page(answers: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the page.

    answers: for each version of torch, what was seen, by the name of the belief.
    """
    every, versions = beliefs(), sorted(answers, key=_order)
    asked = [one for one in every.values() if any(one.name in answers[v] for v in versions)]
    wrong = [one for one in asked if _is_wrong(one, answers, versions)]
    led = sum(bool(one.led_to) for one in wrong)
    counts = (
        f"Of {len(asked)} statements, {len(wrong)} do not hold in at least one of these versions: "
        f"{', '.join(version.partition('+')[0] for version in versions)}. The last column says "
        f"what they changed here ({led}), or which file rests on them.\n"
    )
    parts = [_HEAD, counts]
    for topic in TOPICS:
        here = [one for one in asked if one.topic == topic]
        parts.append(f"\n## {_TITLES[topic]}\n")
        parts += _wrong_table([one for one in here if one in wrong], answers, versions)
        if right := [one for one in here if one not in wrong]:
            parts.append("\nAs one would guess:\n\n")
            parts += [f"- {one.guess} (`{one.name}`)\n" for one in right]
    return "".join(parts)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split("."))


def _is_wrong(
    one: Belief, answers: Mapping[str, Mapping[str, str]], versions: Sequence[str]
) -> bool:
    seen = {answers[version].get(one.name, "-") for version in versions} - {"-"}
    return seen != {one.expected}


def _wrong_table(
    rows: Sequence[Belief], answers: Mapping[str, Mapping[str, str]], versions: Sequence[str]
) -> list[str]:
    if not rows:
        return []
    names = " | ".join(version.partition("+")[0] for version in versions)
    lines = [
        f"\n| one would guess | {names} | what follows |\n",
        f"|{'---|' * (len(versions) + 2)}\n",
    ]
    for one in rows:
        ranks = "" if one.ranks == 2 else f", {one.ranks} rank{'s' if one.ranks > 1 else ''}"
        cells = " | ".join(_cell(one, answers[version].get(one.name, "-")) for version in versions)
        follows = one.led_to or (f"`{one.where}`" if one.where else "")
        lines.append(f"| {one.guess} (`{one.name}`{ranks}) | {cells} | {follows} |\n")
    return lines


def _cell(one: Belief, answer: str) -> str:
    return "so" if answer == one.expected else answer.replace("|", "/").replace("_", "\\_")
