"""Table of the traffic between hosts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid
from commprof.text import plain_digits, printable

TITLE = "Traffic between hosts, per host and outgoing link"

LEGEND = """\
sent: payload that the recorded collectives send to other hosts along gloo's rings and trees, over
all hosts and the whole capture; counted: bytes that the hosts' interfaces sent meanwhile, headers
and other traffic included. headers: bytes in headers of full segments at the interfaces' MTU,
divided by payload. agrees: yes if sent and counted differ by 2 % or less, or if counted is larger
than sent by at most 2 % plus 1.5 times headers. The factor 1.5 allows for TCP acknowledgements, one
per two segments. in flight: rate while a collective of the host was in flight, waiting included;
step: rate over the whole step. MB is 1e6 bytes, Gbit 1e9 bits."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the links between hosts, if a world size had several hosts."""
    worlds = report.result.worlds
    if (grid := host_links_grid(worlds)) is not None:
        yield Section(
            "hosts",
            TITLE,
            heading=TITLE,
            grids=(("By ranks", grid),),
            bullets=tuple(notes(worlds)),
            legend=LEGEND,
        )


def host_links_grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """Makes a table with a row per world size with several hosts; None if there is none."""
    rows = [
        _cells(world.world_size, world.communication.host_links)
        for world in worlds
        if world.communication.host_links is not None
    ]
    if not rows:
        return None
    headers = (
        *("ranks", "hosts", "by", "MB per\nstep", "Gbit/s in\nflight", "\nstep"),
        *("sent\nMB", "counted\nMB", "diffe-\nrence", "head-\ners", "agrees"),
    )
    return Grid(rows, headers, (2, 10))


def notes(worlds: Sequence[WorldResult]) -> list[str]:
    """Returns the reasons for missing figures, by world size."""
    return [
        printable(
            f"{world.world_size} ranks: figures are missing, because "
            f"{world.communication.host_links.note}"
        )
        for world in worlds
        if world.communication.host_links is not None and world.communication.host_links.note
    ]


def _cells(world_size: int, links: HostLinks) -> tuple[str, ...]:
    return (
        str(world_size),
        str(links.hosts),
        printable(", ".join(links.interfaces)) or "-",
        _number(links.step_bytes / 1e6),
        _number(links.in_flight_gbit_per_s),
        _number(links.step_gbit_per_s),
        _number(links.recorded_bytes / 1e6),
        _number(links.counted_bytes / 1e6),
        "-" if math.isnan(links.difference) else f"{links.difference:+.1%}",
        "-" if math.isnan(links.header_share) else f"{links.header_share:.1%}",
        {True: "yes", False: "NO", None: "-"}[links.agrees],
    )


def _number(value: float) -> str:
    return "-" if math.isnan(value) else plain_digits(value, 4)
