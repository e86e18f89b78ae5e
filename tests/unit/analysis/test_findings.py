from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from commprof.analysis.card import card
from commprof.analysis.findings import findings
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import scale
from commprof.analysis.verdict import verdict
from commprof.report.export import as_json
from tests.support.builders.results import collective, context, detail, parts, run_result, world

ABOUT: dict[str, Any] = {
    "machine": {"usable_cpu_count": 1, "cpu_model": "x"},
    "scaling": "weak",
    "nodes": 1,
}
LIMITED = world(
    4,
    steps=9,
    parts=parts(exposed_ms=30.0, wait_ms=5.0, transfer_ms=10.0, unsplit_ms=15.0, no_core_ms=12.0),
    missing_ranks=(3,),
    stalled_steps=((5, 9000.0),),
    collectives=(collective(failed=2),),
    dropped_records=11,
)


def test_each_fact_has_its_figures_and_sentences_with_them() -> None:
    found = {fact.kind: fact for fact in findings(context(**ABOUT), LIMITED)}
    assert {kind: dict(fact.figures) for kind, fact in found.items()} == {
        "cores": {"no_core_share": 0.4, "more_threads_than_cores": True},
        "few_steps": {"measured_steps": 7, "stalled_steps": 1},
        "stalled_steps": {"steps": [{"step": 5, "ms": 9000.0, "waited_for": None}]},
        "missing_ranks": {"ranks": [3]},
        "unsplit": {"unsplit_ms": 15.0, "share": 0.5},
        "failed_calls": {"calls": 2, "operations": ["all_reduce"]},
        "dropped_records": {"records": 11},
    }
    told = ("40%", "Only ", "step 5 (9 s)", "rank 3", "50", "2 collective calls", "11 records")
    for fact, figure in zip(found.values(), told, strict=True):
        for sentence in filter(None, (fact.brief, fact.caveat)):
            assert figure in sentence
        # A line of the card has 80 columns.
        assert len(f"! {fact.brief}") <= 80
    assert "40.0%" in found["cores"].verdict
    assert "step 5 (9 s)" in found["stalled_steps"].verdict


def test_card_verdict_caveats_and_json_choose_from_the_findings() -> None:
    about = context(**ABOUT)
    found = findings(about, LIMITED)
    said = remarks(about, [LIMITED], scale([LIMITED]), None)
    result = run_result(LIMITED, context=about, remarks=said)
    details = [replace(detail(4), ranks=(0, 1, 2))]
    judged = verdict(result, details)
    shown = card(result, details, judged, Path("RUN"))
    assert judged is not None
    assert shown is not None
    for fact in found:
        assert not fact.brief or fact.brief in shown.caveats
        assert not fact.verdict or fact.verdict in judged.sentences
        grouped = fact.kind in ("cores", "few_steps")
        assert grouped or fact.caveat in said
    (of_world,) = json.loads(as_json.render(result))["runs"]
    listed = of_world["aggregated_metrics"]["findings"]
    assert [fact["kind"] for fact in listed] == [fact.kind for fact in found]
    assert {"kind": "dropped_records", "figures": {"records": 11}}.items() <= listed[-1].items()
