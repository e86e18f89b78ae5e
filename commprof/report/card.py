"""Renders a run's card: at most 24 lines of 80 columns, in plain ASCII or in colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from commprof.analysis.card import Card, CardCommunication, CardPart, CardRank, CardSize
from commprof.report.one_screen import LINES, WIDTH, command_lines, cut, prose, whole
from commprof.text import counted, in_bytes, in_ms, listed, plain_digits

#: Letter, name and terminal colour of each part in the bar.
_LOOKS = {
    "data": ("d", "data", "yellow"),
    "forward": ("f", "forward", "green"),
    "backward": ("b", "backward", "bright_green"),
    "unphased_compute": ("c", "compute, phase not known", "cyan"),
    "wait": ("W", "wait", "red"),
    "transfer": ("T", "transfer", "magenta"),
    "exposed": ("X", "exposed, not attributed", "bright_red"),
    "optimizer": ("o", "optimizer", "blue"),
    "copies": ("m", "copies", "bright_blue"),
    "other": (".", "other", "white"),
    "idle": (".", "idle", "white"),
}
_SIZES = 7
#: A part with a smaller fraction of the step is not in the legend.
_SHOWN = 0.0005
#: If a command needs more lines, the card shows the command for the full report instead.
_COMMAND_LINES = 5
_ADVICE_LINES = 3
_CAUSE_LINES, _FIX_LINES = 5, 8
_INCIDENT_LINES = 6
#: In a fix, names with this prefix stand for names of the user's script.
OWN = "YOUR_"


def render(card: Card, colour: bool = False) -> str:
    """Renders the card for a terminal with or without colours.

    Args:
        card: figures of the card.
        colour: True for a terminal that shows colours.
    """
    top = [cut(card.description, f"[{card.setup}]" if card.setup else "")]
    top += [*_shortened(card.incident, _INCIDENT_LINES), *prose(card.verdict)]
    middle = [_bar(card.parts, colour), *_legend(card.parts)] if card.parts else []
    for name, text in facts(card):
        middle += prose(f"{name + ':':<22} {text}")
    next_lines = _next(card)
    space = LINES - len(top) - len(middle) - len(next_lines)
    sizes = _SIZES
    while sizes and len(scaling(card.scaling, sizes)) > space:
        sizes -= 1
    middle += scaling(card.scaling, sizes)
    space -= len(scaling(card.scaling, sizes))
    caveats = _caveats(card.caveats, space)
    gap = [""] if space - len(caveats) >= 2 else []
    return "\n".join([*top, *gap, *middle, *caveats, *gap, *next_lines]) + "\n"


def _bar(parts: Sequence[CardPart], colour: bool) -> str:
    ends, total = [0], 0.0
    for part in parts:
        total += max(0.0, part.share)
        ends.append(min(WIDTH, round(total * WIDTH)))
    drawn = ""
    for part, begin, end in zip(parts, ends, ends[1:], strict=False):
        letter, _, background = _LOOKS[part.name]
        text = letter * (end - begin)
        drawn += _painted(text, background) if colour else text
    return drawn


def _painted(text: str, background: str) -> str:
    from rich.style import Style  # imported here, because output without colours does not need it

    return Style(color="black", bgcolor=background).render(text)


def _legend(parts: Sequence[CardPart]) -> list[str]:
    return whole(f"{_LOOKS[part.name][0]} {text}" for part, text in said_parts(parts))


def said_parts(parts: Sequence[CardPart]) -> list[tuple[CardPart, str]]:
    """Returns the parts that took time, each with a text of its name and figures."""
    return [
        (part, f"{_LOOKS[part.name][1]} {in_ms(part.ms)} {part.share:.1%}")
        for part in parts
        if part.share >= _SHOWN
    ]


def facts(card: Card) -> list[tuple[str, str]]:
    """Returns the names and texts of the main figures."""
    return [*_figures(card.communication), *_whom(card), *_small(card), *_link(card)]


def _figures(of: CardCommunication) -> list[tuple[str, str]]:
    if math.isnan(of.exposed_ms):
        return [("Exposed communication", f"not known: {of.exposed_lacks}.")]
    if not of.exposed_ms > 0:
        return [("Exposed communication", "none.")]
    split = "not separated in this run"
    if not math.isnan(of.wait_ms):
        split = f"{in_ms(of.wait_ms)} waiting for others, {in_ms(of.transfer_ms)} transfer"
    best = f"at most {of.exposed_share:.1%} of the step, leaving {in_ms(of.best_step_ms)}"
    hidden = f"; hidden by work: {in_ms(of.hidden_ms)}" if of.hidden_ms > 0 else ""
    return [
        (
            "Exposed communication",
            f"{in_ms(of.exposed_ms)}, {of.exposed_share:.1%} of the step{hidden}",
        ),
        ("Wait and transfer", split),
        ("Faster communication", f"saves {best}"),
    ]


def _whom(card: Card) -> list[tuple[str, str]]:
    lateness, communication = card.lateness, card.communication
    if lateness.late is None and card.world_size < 2:
        return []
    if lateness.slower is not None:
        answer = lateness.slower.told
    elif lateness.late is not None:
        answer = _late(lateness.late)
    elif communication.exposed_ms == 0:
        answer = "no rank waited"
    elif lateness.nobody_late:
        answer = "no single rank stands out"
    elif card.following.cause:
        return []  # the cause already explains why ranks wait
    else:
        why = lateness.nobody_late_lacks
        answer = "not known" if why == communication.exposed_lacks else f"not known: {why}"
    return [("Waited for", answer)]


def _late(late: CardRank) -> str:
    where = f" falls behind {late.where}" if late.where else ""
    return (
        f"rank {late.rank}{where}: {in_ms(late.wait_ms)} per step and waiting rank, "
        f"{late.share:.0%} of all waiting; late in {late.late_steps} of "
        f"{late.measured_steps} steps (p={late.p_value:.1g})"
    )


def _small(card: Card) -> list[tuple[str, str]]:
    following = card.following
    small = card.small_calls
    if small is None or following.cause:
        return []
    calls = f"{small.calls_per_step:.0f} calls per step, {in_bytes(small.mean_bytes)} on average"
    remedy = "try larger buckets"
    if not small.of_buckets:
        calls, remedy = small.name, small.remedy
    said = f"{calls}: {small.exposed_share:.0%} of the exposed time; {remedy}"
    return [("Small messages", said)]


def _link(card: Card) -> list[tuple[str, str]]:
    link = card.link
    if link is None:
        return []
    sent_mb = plain_digits(link.step_bytes / 1e6)
    said = f"{sent_mb} MB per step and host over {listed(link.interfaces)}, "
    said += f"{link.in_flight_gbit_per_s:.3g} Gbit/s while sending"
    if link.idle:
        said += f"; {listed(link.idle)} idle"
    return [("Between hosts", said)]


def scaling(sizes: Sequence[CardSize], most: int = _SIZES) -> list[str]:
    """Returns lines with the throughput of the ``most`` largest world sizes."""
    shown = sizes[-most:] if most else []
    if not shown:
        return []
    if len(sizes) == 1:
        only = sizes[0]
        if math.isnan(only.samples_per_s):
            return []
        return [
            f"{_rate(only.samples_per_s)} at {counted(only.world_size, 'rank')}; there is no other "
            "world size to compare with"
        ]
    known = any(not math.isnan(size.efficiency) for size in shown)
    return whole(
        ["Throughput (efficiency):" if known else "Throughput:"]
        + [
            f"{counted(size.world_size, 'rank')} {_rate(size.samples_per_s)}"
            + ("" if math.isnan(size.efficiency) else f" ({size.efficiency:.0%})")
            for size in shown
        ]
    )


def _caveats(caveats: Sequence[str], space: int) -> list[str]:
    lines = [cut(f"! {caveat}") for caveat in caveats]
    if len(lines) <= space:
        return lines
    kept = max(0, space - 1)
    return [*lines[:kept], f"! {counted(len(lines) - kept, 'more caveat')}: see --all"][:space]


def _advice(text: str) -> list[str]:
    if not text:
        return ["Next, to see the full report:"]
    lines = prose(f"Next: {text}")
    while len(lines) > _ADVICE_LINES and ". " in text:
        text = text.rpartition(". ")[0] + "."
        lines = prose(f"Next: {text} (more with --all)")
    return _shortened(" ".join(lines), _ADVICE_LINES)


def _shortened(text: str, most_lines: int) -> list[str]:
    lines = prose(text) if text else []
    if len(lines) <= most_lines:
        return lines
    return [*lines[: most_lines - 1], cut(" ".join(lines[most_lines - 1 :]))]


def _mended(card: Card) -> list[str]:
    following = card.following
    # If the run's result is wrong, the card's incident already ends with the advice.
    told = card.incident.endswith(following.advice)
    lines = [] if told else _shortened(f"Cause: {following.advice}", _CAUSE_LINES)
    code = [f"  {line}" for line in following.fix.splitlines() if line]
    if len(code) > _FIX_LINES or any(len(line) > WIDTH for line in code):
        code = command_lines(following.all_command)
        return [*lines, "The lines that fix the script are in the full report:", *code]
    return [
        *lines,
        "Fix (YOUR_... are names of your script):" if OWN in following.fix else "Fix:",
        *code,
    ]


def _next(card: Card) -> list[str]:
    following = card.following
    if following.fix:
        return _mended(card)
    command = command_lines(following.command)
    if len(command) > _COMMAND_LINES:
        command = command_lines(following.all_command)
    return [*_advice(following.advice), *command]


def _rate(value: float) -> str:
    return "samples not counted" if math.isnan(value) else f"{plain_digits(value, 4)} samples/s"
