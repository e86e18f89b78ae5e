from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from commprof.field_groups import FieldGroup, plain_fields


@dataclass(frozen=True)
class Part:
    ms: float


@dataclass(frozen=True)
class Inner(FieldGroup):
    late: int


@dataclass(frozen=True)
class Times(FieldGroup):
    wait: Part
    inner: Inner
    transfer: Part


@dataclass(frozen=True)
class Row:
    op: str
    times: Times
    by_rank: dict[int, Part]
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Flat:
    op: str
    wait: Part
    late: int
    transfer: Part
    by_rank: dict[int, Part]
    rows: tuple[Flat, ...] = ()


def test_fields_of_groups_stand_where_the_group_stood() -> None:
    times, by_rank = Times(Part(1.0), Inner(3), Part(2.0)), {0: Part(4.0)}
    grouped = Row("send", times, {}, rows=(Row("recv", times, by_rank),))
    flat = Flat(
        "send",
        *(Part(1.0), 3, Part(2.0)),
        {},
        rows=(Flat("recv", Part(1.0), 3, Part(2.0), by_rank),),
    )
    assert json.dumps(plain_fields(grouped)) == json.dumps(dataclasses.asdict(flat))
