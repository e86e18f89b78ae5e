from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from commprof.analysis.collectives.compression import (
    compression_remarks,
    compression_rows,
)
from commprof.analysis.world import WorldResult
from commprof.report.sections import compression as compression_table
from commprof.trace import schema
from commprof.trace.columns import compressions
from tests.support.builders.results import compression as row
from tests.support.builders.results import run_result, world
from tests.support.builders.traces import MS, Rank
from tests.support.section_text import tables_text

MB = 1_000_000


def compressed_ranks() -> list[Rank]:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.step(0, 100 * MS)
        rank.step(100 * MS, 200 * MS)
        rank.compressed(3, 8 * MB, tuple(t * MS for t in (10, 11, 13, 20, 24, 29)), wire=2 * MB)
        rank.compressed(
            *(3, 8 * MB, tuple(t * MS for t in (110, 113, 115, 122, 126, 131))),
            wire=2 * MB,
            quality=(0.25, 0.5, 2.0, 200_000, 20_000),
            flags=schema.FLAG_NON_FINITE,
        )
        rank.compressed(0, MB, tuple(t * MS for t in (300, 301, 302, 303, 304, 305)))
    return ranks


def test_compression_rows_have_times_bytes_and_quality() -> None:
    (found,) = compression_rows([r.trace() for r in compressed_ranks()], np.arange(2), 2)
    assert (found.scheme, found.bucket, found.gradient_bytes, found.calls) == ("int8", 3, 8 * MB, 4)
    assert found.times.queue_ms == pytest.approx(2.0)
    stages = (
        found.times.encode_ms,
        found.times.exchange_ms,
        found.times.reduce_ms,
        found.times.decode_ms,
    )
    assert stages == pytest.approx((2.0, 7.0, 4.0, 5.0))
    assert found.times.done_ms == pytest.approx(20.0)
    assert (found.sent.payload_bytes, found.sent.wire_bytes) == (MB, 2 * MB)
    assert found.sent.ratio == pytest.approx(4.0)  # a ring of two ranks sends 8 MB
    assert (found.errors.relative_error, found.errors.cosine, found.errors.residual_ratio) == (
        0.25,
        0.5,
        2.0,
    )
    assert (found.errors.zeroed, found.errors.saturated) == pytest.approx(
        (0.1, 0.01)
    )  # 8 MB hold 2 million values
    assert found.non_finite == 2


def test_compression_rows_count_only_measured_steps() -> None:
    traces = [r.trace() for r in compressed_ranks()]
    (found,) = compression_rows(traces, np.array([0]), 2)
    assert found.calls == 2
    assert math.isnan(found.errors.relative_error)
    assert compression_rows(traces, np.array([], dtype=np.int64), 2) == ()


def test_without_a_compressor_there_are_no_compression_rows() -> None:
    rank = Rank()
    rank.step(0, MS)
    assert compression_rows([rank.trace()], np.arange(1), 1) == ()
    assert len(compressions(rank.trace())) == 0


def test_a_trace_that_lost_its_bucket_records_has_no_rows() -> None:
    trace = compressed_ranks()[0].trace()
    kept = ~np.isin(trace.records["kind"], (schema.Kind.BUCKET, schema.Kind.BUCKET_END))
    lost = dataclasses.replace(trace, records=trace.records[kept])
    assert len(compressions(lost)) == 3
    assert compression_rows([lost], np.arange(2), 2) == ()


def test_compression_ratio_of_one_rank_is_nan() -> None:
    rank = Rank()
    rank.step(0, 100 * MS)
    rank.compressed(0, MB, tuple(t * MS for t in (1, 2, 3, 4, 5, 6)))
    (found,) = compression_rows([rank.trace()], np.arange(1), 1)
    assert math.isnan(found.sent.ratio)


def test_the_compression_ratio_is_relative_to_a_ring_of_the_model_s_group() -> None:
    # In a mesh of 2 x 2 ranks, the model's group has two ranks, and its ring sends 1 MB.
    rank = Rank(0, 4, groups={1: ("replicas", 2)})
    rank.step(0, 100 * MS)
    rank.compressed(0, MB, tuple(t * MS for t in (1, 2, 3, 4, 5, 6)), wire=MB // 4)
    (found,) = compression_rows([rank.trace()], np.arange(1), 4)
    assert found.sent.ratio == pytest.approx(4.0)
    (told,) = compression_remarks({}, [found], 4, 1, 1)
    assert "sent 0.25 MB per step and rank instead of the 1 MB of an fp32 ring" in told
    rank.groups = {1: ("alone", 1)}
    (found,) = compression_rows([rank.trace()], np.arange(1), 4)
    assert math.isnan(found.sent.ratio)


def test_control_characters_in_a_scheme_s_name_are_replaced() -> None:
    rank = Rank()
    rank.step(0, 100 * MS)
    rank.compressed(0, MB, tuple(t * MS for t in (1, 2, 3, 4, 5, 6)), scheme="a\x1b[\x80b")
    assert compressions(rank.trace()).scheme == ("a?[??b",)


def test_compression_remarks_name_saved_bytes_and_non_finite_buckets() -> None:
    told = compression_remarks({}, [row(), row(bucket=1, non_finite=1)], 2, 2, 10)
    assert told == [
        "At 2 ranks int8 sent 2 MB per step and rank instead of the 8 MB of an fp32 ring "
        "all-reduce (4.0 times fewer bytes). Encoding, reducing and decoding took 0.751 ms per "
        "step on the compressor's thread.",
        "At 2 ranks 1 of 40 buckets that int8 sent had non-finite gradients on some rank, and "
        "became NaN on all ranks.",
    ]


def test_compression_remarks_write_large_figures_in_full() -> None:
    sent = row(calls=20, wire_bytes=1.234e9, encode_ms=2345.6, reduce_ms=0.0, decode_ms=0.0)
    (told,) = compression_remarks({}, [sent], 2, 2, 10)
    assert "sent 1234 MB per step and rank instead of the 4936 MB of" in told
    assert "decoding took 2346 ms per step" in told


def test_a_remark_says_that_the_compression_hook_compressed_nothing() -> None:
    context = {"hook": "int8", "capture": "native"}
    (told,) = compression_remarks(context, [], 2, 2, 10)
    assert told.startswith("At 2 ranks --hook int8 compressed nothing")
    assert compression_remarks({}, [], 2, 2, 10) == []


PLAIN = """\
Compressed buckets of 2 ranks:
scheme  bucket  size  queue  encode  exchange  reduce  decode    ready  sent  less
                  MB                                           to done    MB
------  ------  ----  -----  ------  --------  ------  ------  -------  ----  ----
int8         0     4    0.5    0.25         8   0.125  <0.001      8.9     1  4.0x
int8         1     4    0.5    0.25         8   0.125  <0.001      8.9     1     -"""
MEASURED = [
    ["error", "cosine", "residual", "zeroed"],
    [],
    ["------"] * 2 + ["--------", "------"],
    ["0.0078", "1.0000", "0", "1.2%"],
    ["-"] * 4,
]


def table_of(found: WorldResult) -> str:
    return tables_text(compression_table.sections, run_result(found))


def test_the_compression_table_is_unchanged() -> None:
    section = tables_text(
        compression_table.sections,
        run_result(world(2, compression=(row(), row(bucket=1, ratio=math.nan)))),
    )
    assert section == PLAIN
    measured = row(relative_error=0.0078, cosine=0.99997, residual_ratio=0.0, zeroed=0.0123)
    lines = tables_text(
        compression_table.sections, run_result(world(1, compression=(measured, row())))
    ).splitlines()
    assert lines[0] == "Compressed buckets of 1 rank:"
    width = len(PLAIN.splitlines()[1])
    assert [line[width:].split() for line in lines[1:]] == MEASURED


def test_buckets_not_shown_in_the_compression_table_are_counted() -> None:
    rows = tuple(row(bucket=i) for i in range(14))
    last = tables_text(
        compression_table.sections, run_result(world(2, compression=rows))
    ).splitlines()[-1]
    assert last == "Not shown: 2 more buckets (see the JSON result)."
