"""Peak memory of this process, against memory that a test takes."""

from __future__ import annotations

import mmap

from commprof.analysis.rank_summary import RankSummary
from commprof.launch.worker import PeakMemory
from commprof.report.sections.memory import memory_section
from tests.support.builders.results import PARTS, world

MIB = 1 << 20


def take(size_bytes: int) -> mmap.mmap:
    """Resident memory that goes back to the kernel when it is closed."""
    memory = mmap.mmap(-1, size_bytes)
    memory.write(b"\1" * size_bytes)
    return memory


def test_the_peak_is_that_since_the_start() -> None:
    memory = PeakMemory("cpu")
    take(200 * MIB).close()  # as making a model would
    memory.start()
    before = memory.use()
    take(64 * MIB).close()
    after = memory.use()

    assert before.before_bytes == after.before_bytes > 10 * MIB
    assert before.peak_bytes < before.before_bytes + 100 * MIB
    assert 60 * MIB < after.peak_bytes - before.peak_bytes < 160 * MIB
    assert after.device_peak_bytes is None


def rank(**values: float) -> RankSummary:
    measured = {"rank": 0, "samples": 1, "duration_s": 1, "samples_per_s": 1, "host": "host"}
    return RankSummary(parts=PARTS, average_loss=1.0, final_loss=1.0, **{**measured, **values})  # type: ignore[arg-type]


def test_what_training_took_is_the_gpus_where_there_is_one() -> None:
    assert rank(before_rss_bytes=300, peak_rss_bytes=800).training_bytes == 500
    both = rank(before_rss_bytes=300, peak_rss_bytes=800, device_peak_bytes=70)
    assert both.training_bytes == 70
    assert rank().training_bytes != rank().training_bytes  # NaN


def test_the_table_names_the_ranks_that_take_most_and_least() -> None:
    ranks = (
        rank(before_rss_bytes=300e6, peak_rss_bytes=800e6),
        rank(before_rss_bytes=310e6, peak_rss_bytes=700e6),
    )
    assert memory_section([world(2, ranks=ranks)]).splitlines()[-1].split() == [
        "2", "800", "700", "310",
    ]  # fmt: skip
    on_gpu = (*ranks, rank(before_rss_bytes=1e6, peak_rss_bytes=2e6, device_peak_bytes=5e6))
    row = memory_section([world(3, ranks=on_gpu)]).splitlines()[-1].split()
    assert row == ["3", "800", "2", "310", "5", "5"]
    assert memory_section([world(1, ranks=(rank(),))]) == ""
