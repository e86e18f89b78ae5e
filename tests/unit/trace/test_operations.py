from __future__ import annotations

from commprof.trace.operations import FAMILIES, codes_of, family, names_of
from commprof.trace.schema import OPS


def test_each_operation_has_a_row() -> None:
    assert tuple(FAMILIES) == OPS
    assert [op for op in OPS if not family(op)] == ["other"]


def test_a_family_has_the_name_of_its_plainest_variant() -> None:
    for of_family in {*FAMILIES.values()} - {""}:
        assert family(of_family) == of_family


def test_variants_are_listed_by_name_and_by_code() -> None:
    assert names_of("barrier", "recv") == (
        *("barrier", "monitored_barrier"),
        *("recv", "recv_any_source"),
    )
    assert [OPS[code] for code in codes_of("all_to_all")] == ["all_to_all", "all_to_all_single"]


def test_a_variant_of_another_tool_belongs_to_the_family_that_its_name_begins_with() -> None:
    assert family("all_gather_v") == "all_gather"
    assert family("coalesced") == family("reduced") == ""
