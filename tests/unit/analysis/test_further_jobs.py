from __future__ import annotations

from pathlib import Path

from tests.support.analysed import analyse_run
from tests.support.builders import trace_bytes as made


def test_every_report_names_what_else_recorded_into_its_directory(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "job_2", tmp_path / "job_3"):
        place.mkdir(exist_ok=True)
        (place / "rank_0.trace").write_bytes(made.trace(rank=0, world_size=1))
    (remark,) = [text for text in analyse_run(tmp_path).remarks if "job_2" in text]
    assert remark.startswith("The figures leave out the recordings in job_2 and job_3, below this")
    assert not any("recorded into" in text for text in analyse_run(tmp_path / "job_2").remarks)
