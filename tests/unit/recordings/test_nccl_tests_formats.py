"""The logs have the formats in the sources of nccl-tests and rccl-tests."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from commprof.analysis.sweeps.sweep_comparison import compare_sweeps
from commprof.analysis.sweeps.sweep_file import read_sweep
from commprof.commands import main
from commprof.errors import CommprofError, UsageError
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.fit.points import read_points
from commprof.recordings.nccl_tests import NcclTestsLog, is_nccl_tests, read_nccl_tests

SIZES = [1024 * 4**k for k in range(10)]
PLACES = ("out_of_place", "in_place")
#: nccl-tests' doc/PERFORMANCE.md defines busbw as algbw times this factor.
FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}


def time_us(size: int) -> float:
    return 20 + size / 100e3


def shown(value: float, width: int) -> str:
    """nccl-tests' ``getFloatStr`` in util.cu formats numbers like this."""
    texts = [f"{value:{width}.{digits}f}" for digits in (2, 1, 0)]
    return next((text for text in texts if len(text) <= width), f"{value:{width}.1e}")


def devices(number: int, per_host: int = 8, group: Callable[[int], int] = lambda rank: 0) -> str:
    return "".join(
        f"#  Rank {rank:2d} Group {group(rank):2d} Pid {4000 + rank:6d} on "
        f"{f'node{rank // per_host}':>10} device {rank % per_host:2d} [0000:01:00] A GPU\n"
        for rank in range(number)
    )


def head(listed: str, program: str = "all_reduce_perf") -> str:
    return (
        f"# nccl-tests version 2.19.6\n# Collective test starting: {program}\n# nThread 1 nGpus 1 "
        f"minBytes 1024 maxBytes 268435456\n#\n# Using devices\n{listed}#\n"
    )


def result(size: int, ranks: int, names: Sequence[str], op: str, factor: float = 1.0) -> str:
    t = time_us(size) * factor
    algbw = size / t / 1e3
    values = {
        "time": shown(t, 7),
        "hipevt": shown(0.97 * t, 7),
        "algbw": shown(algbw, 6),
        "busbw": shown(algbw * FACTORS[op](ranks), 6),
        "#wrong": f"{0:6g}",
        "error": "  0e+00",
        "i_min": shown(0.9 * t, 7),
        "i_max": shown(1.5 * t, 7),
        "i_p99": shown(1.4 * t, 7),
        "i_cv%": shown(12.5, 7),
    }
    return "".join("  " + values[name] for name in names)


NEW = ("time", "algbw", "busbw", "#wrong")


def table(
    ranks: int,
    names: Sequence[str] = NEW,
    places: Sequence[str] = PLACES,
    op: str = "all_reduce",
    behind: tuple[str, str] = ("", ""),
    cycles: Iterable[float] = (1.0,),
) -> str:
    above = "".join(f"          {place.replace('_', '-')}          " for place in places)
    header = "".join(f"  {name:>7}" for name in names) * len(places)
    text = f"#\n#{'':46}{above}\n#       size         count      type   redop    root{header}"
    text += f" {behind[0]}\n#        (B)    (elements)\n"
    for factor in cycles:
        for size in SIZES:
            cells = result(size, ranks, names, op, factor) * len(places)
            text += f"{size:12d}  {size // 4:12d}     float     sum      -1{cells}{behind[1]}\n"
    return text + "# Out of bounds values  : 0 OK\n# Avg bus bandwidth     : 60\n#\n"


def log_of(folder: Path, text: str | bytes, name: str = "job.out") -> NcclTestsLog:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert is_nccl_tests(path)
    (log,) = read_nccl_tests(path)
    return log


def figures(log: NcclTestsLog) -> list[tuple[int, str, float]]:
    return [(row.size_bytes, row.placement, row.time_us) for row in log.rows]


def expected(places: Sequence[str] = PLACES) -> list[tuple[int, str, float]]:
    return [(size, place, float(shown(time_us(size), 7))) for size in SIZES for place in places]


PER_ITERATION = (*NEW, "i_min", "i_max", "i_p99", "i_cv%")


@pytest.mark.parametrize(
    ("names", "places", "behind"),
    [
        (NEW, PLACES, ("", "")),
        (("time", "algbw", "busbw", "error"), PLACES, ("", "")),
        (("time", "hipevt", "algbw", "busbw", "#wrong"), PLACES, ("", "")),
        (("time", "hipevt", "algbw", "busbw", "#wrong"), ("in_place",), ("", "")),
        (NEW, ("in_place",), ("", "")),
        (NEW, ("out_of_place",), ("timestamp", "  2026-07-09 12:00:00")),
        (NEW, PLACES, ("timestamp", "  2026-07-09 12:00:00")),
        (NEW, PLACES, ("algo      proto      nchannels", "    RING    SIMPLE          32")),
        (NEW, ("in_place",), ("algo      proto      nchannels", "    N/A     N/A        N/A")),
        (PER_ITERATION, PLACES, ("", "")),
        (PER_ITERATION, PLACES, ("timestamp", "  2026-07-09 12:00:00")),
    ],
)
def test_columns_are_read_by_their_names(
    tmp_path: Path, names: tuple[str, ...], places: tuple[str, ...], behind: tuple[str, str]
) -> None:
    log = log_of(tmp_path, head(devices(8)) + table(8, names, places, behind=behind))
    assert (log.op, log.ranks, log.hosts, log.remarks) == ("all_reduce", 8, 1, ())
    assert figures(log) == expected(places)
    assert {row.wrong for row in log.rows} == {0}


def test_a_single_result_without_its_placement_is_refused(tmp_path: Path) -> None:
    text = head(devices(8)) + table(8, places=("in_place",)).replace("in-place", "")
    with pytest.raises(UsageError, match="does not say whether results are in place or out of"):
        log_of(tmp_path, text)


def test_per_iteration_columns_give_the_spread_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.out"
    path.write_text(head(devices(8)) + table(8, PER_ITERATION))
    row = read_sweep(path).rows[0]
    assert (row.time_us, row.min_us, row.p99_us, row.max_us) == (20.01, 18.01, 28.01, 30.02)
    assert row.cv == pytest.approx(0.125)


def noise(lines: int) -> str:
    return "".join(
        f"node{line % 8}:{line}:{line} [{line % 8}] NCCL INFO Channel {line % 32:02d}/0 : "
        f"{line % 64}[0] -> {line % 63}[1] via P2P/CUMEM\n"
        for line in range(lines)
    )


@pytest.mark.parametrize(("ranks", "lines"), [(1024, 0), (2048, 10), (8, 60_000)])
def test_the_table_may_stand_behind_megabytes_of_other_lines(
    tmp_path: Path, ranks: int, lines: int
) -> None:
    text = noise(lines) + head(devices(ranks)) + noise(lines // 2) + table(ranks)
    log = log_of(tmp_path, text)
    assert (log.ranks, log.hosts, log.remarks) == (ranks, ranks // 8, ())
    assert figures(log) == expected()


@pytest.mark.parametrize(
    "label",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[prterun-host-3@1,0]<stdout>: ",
        "0: ",
        " 0: ",
        "[0] ",
        "[default0]:",
        "2026-05-01T10:00:00.123456Z ",
        "2026-05-01 10:00:00,123 INFO ",
        "[pod/nccl-launcher-x7/nccl] ",
        "nccl-launcher  | ",
        "\x1b[36m(pid=77, ip=10.0.0.1)\x1b[0m ",
        "2026-05-01T10:00:00Z [1,0]<stdout>:",
        "> ",
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_labels_colours_and_line_ends_make_no_difference(
    tmp_path: Path, label: str, ending: str
) -> None:
    lines = (head(devices(16)) + table(16)).splitlines()
    log = log_of(tmp_path, (ending.join(label + line for line in lines) + ending).encode())
    assert (log.op, log.ranks, log.hosts, log.remarks) == ("all_reduce", 16, 2, ())
    assert figures(log) == expected()


def test_a_container_s_log_of_docker_holds_the_lines(tmp_path: Path) -> None:
    lines = (head(devices(16)) + table(16)).splitlines()
    kept = [
        f'{{"log":{json.dumps(line + chr(10))},"stream":"stdout","time":"2026-05-01T10:00:00.1Z"}}'
        for line in lines
    ]
    log = log_of(tmp_path, "\n".join(kept) + '\n{"log":"cut off')
    assert (log.op, log.ranks, log.hosts, log.remarks) == ("all_reduce", 16, 2, ())
    assert figures(log) == expected()


def in_pieces(line: str) -> list[str]:
    third = len(result(SIZES[0], 8, NEW, "all_reduce"))
    return [line[: -2 * third], line[-2 * third : -third], line[-third:]]


def test_mpirun_tags_may_stand_within_rows(tmp_path: Path) -> None:
    tag = "[1,0]<stdout>:"
    lines = [
        tag + tag.join(in_pieces(line) if line.startswith("  ") else [line])
        for line in (head(devices(8)) + table(8)).splitlines()
    ]
    assert figures(log_of(tmp_path, "\n".join(lines))) == expected()


@pytest.mark.parametrize("label", ["", "[1,0]<stdout>:", "0: "])
def test_rows_broken_by_lines_of_other_ranks_are_put_together(tmp_path: Path, label: str) -> None:
    drawn = random.Random(48)
    text = ""
    for line in (head(devices(8)) + table(8)).splitlines():
        parts = in_pieces(line) if line.startswith("  ") else [line]
        text += label + parts[0]
        for part in parts[1:]:
            if drawn.random() < 0.5:
                text += f"node3:71:{drawn.randrange(99)} [3] NCCL INFO comm 0x1 rank 3 nranks 8\n"
                text += noise(drawn.randrange(3)) + label
            text += part
        text += "\n"
    assert figures(log_of(tmp_path, text)) == expected()


def test_rows_that_cannot_be_put_together_are_counted_and_left_out(tmp_path: Path) -> None:
    text = head(devices(8)) + table(8)
    cut = f"{time_us(SIZES[5]):.2f}"[:-2]
    broken = text.replace(f"{cut}", f"{cut[:2]}node1:1:1 [0] NCCL WARN a\n{cut[2:]}", 1)
    assert broken != text
    log = log_of(tmp_path, broken)
    assert set(figures(log)) < set(expected())
    assert len(log.rows) == 18
    assert log.remarks == ("1 row broken by other output is left out",)


def test_warnings_between_rows_and_a_log_that_ends_within_a_row(tmp_path: Path) -> None:
    lines = (head(devices(8)) + table(8)).splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("  "))
    lines[begin + 3 : begin + 3] = [
        "",
        "node0:77:80 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : Got completion from peer",
        "srun: Job step 1.0 all_reduce_perf 4096 1024 float",
    ]
    whole = "\n".join(lines[: begin + 7])
    log = log_of(tmp_path, whole[: -len(in_pieces(lines[begin + 6])[2]) - 4])
    assert figures(log) == expected()[:6]


@pytest.mark.parametrize("ranks", [8, 16])
def test_a_lost_line_of_a_rank_is_found(tmp_path: Path, ranks: int) -> None:
    listed = devices(ranks).splitlines(keepends=True)
    for lost in (0, 3):
        kept = "".join(line for at, line in enumerate(listed) if at != lost)
        log = log_of(tmp_path, head(kept) + table(ranks))
        assert (log.ranks, log.hosts) == (ranks, None if ranks == 8 else 2)
        (said,) = log.remarks
        assert f"of 1 rank ({lost}) are missing; {ranks} ranks took part" in said
    log = log_of(tmp_path, head("".join(listed[:-1])) + table(ranks))
    assert log.ranks == ranks
    (said,) = log.remarks
    assert f"name {ranks - 1} ranks, but busbw / algbw = " in said
    assert said.endswith(f" shows {ranks} ranks; commprof uses {ranks} ranks")
    path = tmp_path / "job.out"
    if ranks == 8:
        with pytest.raises(CommprofError, match="does not name the host of every rank"):
            read_points(path)
    else:
        assert {point.ranks for point in read_points(path).points} == {16}


def test_a_line_of_a_rank_without_its_number_sign_counts(tmp_path: Path) -> None:
    log = log_of(tmp_path, head(devices(8).replace("#  Rank  0", "   Rank  0")) + table(8))
    assert (log.ranks, log.hosts, log.remarks) == (8, 1, ())


def test_ranks_follow_from_bandwidths_where_no_rank_is_listed(tmp_path: Path) -> None:
    log = log_of(tmp_path, head("") + table(8))
    assert (log.ranks, log.hosts) == (8, None)
    assert log.remarks == ("it has no lines `# Rank`; busbw / algbw = 1.75 shows 8 ranks",)


def test_a_log_that_contradicts_itself_is_refused_with_both_figures(tmp_path: Path) -> None:
    text = head(devices(8)) + table(1000)
    with pytest.raises(UsageError, match=r"name 8 ranks, but busbw / algbw = 1\.99.*; correct"):
        log_of(tmp_path, text)
    text = head(devices(8), "all_gather_perf") + table(8)
    with pytest.raises(UsageError, match=r"busbw / algbw = 1.75 of all_gather fits no number"):
        log_of(tmp_path, text)


@pytest.mark.parametrize(
    ("split", "members", "hosts"),
    [
        (lambda rank: rank % 2, 8, 2),  # NCCL_TESTS_SPLIT="MOD 2"
        (lambda rank: rank | 7, 8, 1),  # NCCL_TESTS_SPLIT="OR 0x7"
        (lambda rank: rank & 3, 4, 2),  # "AND 0x3" or NCCL_TESTS_SPLIT_MASK=0x3
        (lambda rank: rank // 4, 4, 1),  # NCCL_TESTS_SPLIT="DIV 4"
    ],
)
def test_ranks_of_a_split_are_those_of_one_group(
    tmp_path: Path, split: Callable[[int], int], members: int, hosts: int
) -> None:
    groups = len({split(rank) for rank in range(16)})
    said = (
        f"{groups} groups were measured at the same time; the numbers of ranks and hosts are those "
        "of the first group",
    )
    log = log_of(tmp_path, head(devices(16, group=split)) + table(members))
    assert (log.ranks, log.hosts, log.remarks) == (members, hosts, said)
    document = as_json(members, [(rank, split(rank)) for rank in range(16)])
    log = log_of(tmp_path, json.dumps(document), "a.json")
    assert (log.ranks, log.hosts, log.remarks) == (members, hosts, said)


def as_json(ranks: int, listed: Sequence[tuple[int, int]], cycles: int = 1) -> dict[str, object]:
    """nccl-tests writes such a document with ``-J`` (util.cu)."""
    bodies = [
        {
            "time": time_us(size),
            "alg_bw": size / time_us(size) / 1e3,
            "bus_bw": size / time_us(size) / 1e3 * FACTORS["all_reduce"](ranks),
            "nwrong": None,
        }
        for size in SIZES
    ]
    rows = [
        {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"}
        | dict.fromkeys(PLACES, body)
        for size, body in zip(SIZES, bodies, strict=True)
    ]
    return {
        **{"version": 3, "start_time": "2026-07-09 10:00:00", "env": ["A=b"]},
        "args": ["./build/all_reduce_perf", "-J", "a.json"],
        "config": {
            **{"nthreads": 1, "ngpus": 1},
            "devices": [
                {"rank": rank, "group": group, "hostname": f"node{rank // 8}"}
                for rank, group in listed
            ],
        },
        "results": rows * cycles,
    }


def test_skipped_iterations_and_cycles_of_the_json_are_told_apart(tmp_path: Path) -> None:
    document = as_json(8, [(rank, 0) for rank in range(8)], cycles=2)
    for row in document["results"][:]:  # type: ignore[index]
        times = [20 * time_us(row["size"])] * 11 + [time_us(row["size"])] * 9
        for place in PLACES:
            row[f"{place}_per_iter"] = {"skipped_iterations": 11, "times_us": times}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    rows = read_sweep(path).rows
    assert [row.time_us for row in rows[::2]] == [time_us(size) for size in SIZES]
    assert {row.round_iterations for row in rows} == {(9, 9)}


def test_cpu_times_are_refused_in_text_and_json(tmp_path: Path) -> None:
    document = as_json(8, [(rank, 0) for rank in range(8)])
    for row in document["results"]:  # type: ignore[attr-defined]
        for place in PLACES:
            row[place] = {"cpu_time": 1.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0}
    text = head(devices(8)) + table(8).replace("   time", "cputime")
    for content in (json.dumps(document), text):
        with pytest.raises(UsageError, match="its times are CPU times"):
            log_of(tmp_path, content, "a.json")


def records(ranks: int, of_group: int, gpus: int, cycles: int = 1) -> list[dict[str, object]]:
    """rccl-tests writes such records with ``-Z`` (``Reporter`` in common.cu)."""
    found: list[dict[str, object]] = []
    for cycle in range(cycles):
        for size in SIZES:
            for in_place in (0, 1):
                algbw = size / time_us(size) / 1e3
                found.append(
                    {
                        **{"numCycle": cycle, "name": "AllReduce", "nodes": ranks // of_group},
                        **{"ranks": ranks, "ranksPerNode": of_group, "gpusPerRank": gpus},
                        **{"size": size, "type": "float", "redop": "sum", "inPlace": in_place},
                        **{"time": round(time_us(size), 6), "algBw": round(algbw, 6)},
                        "busBw": round(algbw * FACTORS["all_reduce"](of_group * gpus), 6),
                        "wrong": "N/A" if in_place else "0",
                    }
                )
    return found


def as_csv(found: Sequence[dict[str, object]], names: str | None = None) -> str:
    lines = [names or ",".join(found[0])]
    for record in found:
        lines.append(",".join(f'"{v}"' if isinstance(v, str) else f"{v}" for v in record.values()))
    return "\n".join(lines) + "\n"


#: rccl-tests writes these names in its CSV, though its rows also have a value for ``nodes``.
OWN_NAMES = (
    "numCycle,collective,ranks,rankspernode,gpusperrank,size,type,redop,inplace,time,algbw,busbw,"
    "#wrong"
)


@pytest.mark.parametrize(("ranks", "of_group", "gpus"), [(8, 8, 1), (16, 8, 1), (4, 4, 2)])
@pytest.mark.parametrize("shape", ["json", "csv", "own names"])
def test_rccl_tests_records_are_read(
    tmp_path: Path, ranks: int, of_group: int, gpus: int, shape: str
) -> None:
    found = records(ranks, of_group, gpus)
    text = json.dumps(found) if shape == "json" else as_csv(found, OWN_NAMES)
    text = as_csv(found) if shape == "csv" else text
    log = log_of(tmp_path, text)
    hosts = 1 if ranks == of_group else None
    assert (log.op, log.ranks, log.hosts) == ("all_reduce", 8, hosts)
    assert figures(log) == [
        (size, place, pytest.approx(time_us(size))) for size in SIZES for place in PLACES
    ]
    assert [row.wrong for row in log.rows[:2]] == [0, None]
    assert {row.count for row in log.rows} == {size // 4 for size in SIZES}


def test_rccl_tests_records_of_a_build_without_mpi_have_gpus(tmp_path: Path) -> None:
    found = [
        {
            "gpus" if name == "gpusPerRank" else name: value
            for name, value in record.items()
            if name not in ("nodes", "ranks", "ranksPerNode")
        }
        for record in records(1, 1, 8)
    ]
    for text in (json.dumps(found), as_csv(found)):
        log = log_of(tmp_path, text)
        assert (log.ranks, log.hosts, log.remarks) == (8, 1, ())


def test_cycles_are_rounds_and_compare_tells_a_slower_run_from_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = random.Random(3)
    paths = []
    for name, slower in (("a", 1.0), ("b", 1.3)):
        cycles = [slower * drawn.uniform(0.99, 1.01) for _ in range(8)]
        path = tmp_path / f"{name}.out"
        path.write_text(head(devices(8)) + table(8, cycles=cycles))
        paths.append(path)
    rows = read_sweep(paths[0]).rows
    assert len(rows) == 20
    assert {row.round_iterations for row in rows} == {(1,) * 8}
    assert all(0 < row.cv < 0.01 for row in rows)
    compared = compare_sweeps(*map(read_sweep, paths))
    assert {row.verdict for row in compared.rows if row.key.size_bytes > 1 << 22} == {"slower"}
    assert main(["compare", *map(str, paths), "--fail-above", "5%"]) == 1
    assert main(["compare", str(paths[0]), str(paths[0]), "--fail-above", "5%"]) == 0
    few = tmp_path / "few.out"
    few.write_text(head(devices(8)) + table(8, cycles=[1.0, 1.01, 0.99, 1.0, 1.02]))
    capsys.readouterr()
    assert main(["compare", str(few), str(few), "--fail-above", "5%"]) == 2
    assert "With 5 rounds and 20 rows" in (said := capsys.readouterr().err)
    assert "nccl-tests -N 8 or more" in said


def test_cycles_of_a_single_size_are_rounds_and_repeated_sizes_are_not(tmp_path: Path) -> None:
    lines = (head(devices(8)) + table(8)).splitlines(keepends=True)
    begin = next(at for at, line in enumerate(lines) if line.startswith("  "))
    log = log_of(tmp_path, "".join(lines[:begin] + [lines[begin]] * 5))
    assert [row.round for row in log.rows[::2]] == [0, 1, 2, 3, 4]
    # nccl-tests can round two small sizes up to the same size.
    log = log_of(tmp_path, "".join(lines[: begin + 1] + lines[begin:]))
    assert {row.round for row in log.rows} == {0}


def test_a_repeated_run_in_one_log_is_a_round_and_is_said(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3 * (head(devices(8)) + table(8)))
    assert sorted({row.round for row in log.rows}) == [0, 1, 2]
    assert log.remarks == (
        "it holds 3 runs of the same test, which are taken as rounds of one run",
    )


def test_several_operations_in_one_log(tmp_path: Path) -> None:
    path = tmp_path / "all.out"
    path.write_text(
        head(devices(8))
        + table(8)
        + "# Collective test concluded: all_reduce_perf\n"
        + head(devices(8), "all_gather_perf")
        + table(8, op="all_gather")
        + head(devices(4), "broadcast_perf")
        + table(4, op="broadcast")
    )
    assert [(log.op, log.ranks, len(log.rows)) for log in read_nccl_tests(path)] == [
        *(("all_reduce", 8, 20), ("all_gather", 8, 20), ("broadcast", 4, 20))
    ]


def told_by_rows(
    ratio: float, redop: str = "sum", root: int = -1, parts: int = 1, listed: int = 8
) -> str:
    rows = "".join(
        f"{size:12d}  {size // 4 // parts:12d}     float    {redop:>4}      {root:2d}"
        + 2 * f"  {shown(time_us(size), 7)}  {algbw:6.2f}  {ratio * algbw:6.2f}       0"
        + "\n"
        for size in SIZES
        for algbw in (size / time_us(size) / 1e3,)
    )
    columns = "time   algbw   busbw  #wrong"
    return (
        f"# nThread 1 nGpus 1\n{devices(listed)}#\n#   out-of-place   in-place\n"
        f"#       size         count      type   redop    root  {columns}  {columns}\n{rows}"
    )


@pytest.mark.parametrize(
    ("text", "op"),
    [
        (told_by_rows(1.75), "all_reduce"),
        (told_by_rows(1.5, listed=4), "all_reduce"),
        (told_by_rows(1.75, listed=0), "all_reduce"),
        (told_by_rows(0.875, parts=8), "reduce_scatter"),
        (told_by_rows(1.0, root=0), "reduce"),
        (told_by_rows(1.0, "none", root=0), "broadcast"),
    ],
)
def test_an_operation_that_nothing_names_is_told_by_its_rows(
    tmp_path: Path, text: str, op: str
) -> None:
    log = log_of(tmp_path, text)
    ranks = 4 if text.count("Rank") == 4 else 8
    assert (log.op, log.ranks, len(log.rows)) == (op, ranks, 20)
    assert f"it does not name its operation; redop, root and busbw / algbw are those of {op}" in (
        log.remarks
    )


@pytest.mark.parametrize(
    "text",
    [
        told_by_rows(1.0, listed=2),  # may be all_reduce or an old reduce_scatter
        told_by_rows(0.875, "none", parts=8),  # may be all_gather or all_to_all
        told_by_rows(1.0, "none"),  # may be send_recv or an old all_gather
        told_by_rows(0.875, "none", root=0, parts=8),  # may be gather or scatter
    ],
)
def test_an_operation_that_the_rows_do_not_tell_must_be_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.out"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"name its operation|all_reduce or reduce_scatter"):
        read_nccl_tests(path)


def test_a_table_without_a_name_beside_named_ones_is_told_by_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "all.out"
    named = head(devices(8), "all_gather_perf") + table(8, op="all_gather")
    path.write_text(named + told_by_rows(1.75))
    assert [(log.op, len(log.rows)) for log in read_nccl_tests(path)] == [
        *(("all_gather", 20), ("all_reduce", 20))
    ]


def test_processes_that_measured_alone_are_said_to(tmp_path: Path) -> None:
    """Without MPI, two processes under mpirun are both rank 0, and each prints a table."""
    listed = devices(1) + devices(1).replace("node0", "node1")
    text = head(listed) + table(1).replace("# Out", "\n# Out")
    log = log_of(tmp_path, text)
    assert (log.ranks, log.hosts) == (1, 1)
    (said,) = log.remarks
    assert said.startswith("2 processes number their ranks from 0, so each process measured alone")


@pytest.mark.parametrize(
    ("error", "wrong"), [("5e-07", 0), ("3e-05", 0), ("1e-04", 1), ("1e+00*", 1), ("N/A", None)]
)
def test_the_largest_error_of_old_versions_counts_above_what_they_allow(
    tmp_path: Path, error: str, wrong: int | None
) -> None:
    """Old versions allow an error of 1e-5 per rank beyond the first.

    rccl-tests marks errors by ``*``.
    """
    names = ("time", "algbw", "busbw", "error")
    text = table(8, names).replace("  0e+00", f"{error:>7}")
    log = log_of(tmp_path, head(devices(8)) + text)
    assert {row.wrong for row in log.rows} == {wrong}
    assert len(log.rows) == 20


def test_version_1_shows_bytes_and_milliseconds(tmp_path: Path) -> None:
    text = "# Using devices\n" + "".join(
        f"#   Rank {rank:2d} on {'a':>10} device {rank:2d} [0x01] A GPU\n" for rank in range(4)
    )
    text += "#                     out-of-place                    in-place\n"
    text += "#      bytes             N    type      op" + "     time  algbw  busbw      res" * 2
    for size in SIZES[5:]:
        t = time_us(size)
        algbw = size / t / 1e3
        text += f"\n{size:12d}  {size // 4:12d}   float     sum"
        text += f"  {t / 1e3:7.3f}  {algbw:5.2f}  {1.5 * algbw:5.2f}    0e+00" * 2
    log = log_of(tmp_path, text, "all_reduce.log")
    assert (log.ranks, log.hosts) == (4, 1)
    assert [row.time_us for row in log.rows[::2]] == [
        pytest.approx(time_us(size), abs=0.6) for size in SIZES[5:]
    ]


def test_busbw_before_2_9_tells_no_number_of_ranks(tmp_path: Path) -> None:
    """Before version 2.9, nccl-tests put the factor (n - 1) / n into algbw of all_gather."""
    text = head(devices(8), "all_gather_perf") + table(8, op="broadcast")
    assert (log_of(tmp_path, text).ranks, log_of(tmp_path, text).remarks) == (8, ())


def test_links_and_remarks_reach_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.out"
    path.write_text(head(devices(16, group=lambda rank: rank % 2)) + table(8))
    found = read_points(path)
    assert {(point.ranks, point.link) for point in found.points} == {(8, OTHER_HOST)}
    assert main(["fit", str(path), "--output", str(tmp_path / "p.json")]) == 0
    assert "Note: " in (shown_text := capsys.readouterr().out)
    assert "2 groups were measured at the same time" in shown_text
    path.write_text(head(devices(8)) + table(8))
    assert {point.link for point in read_points(path).points} == {SAME_HOST}


def test_alltoallv_is_an_all_to_all_of_unequal_parts(tmp_path: Path) -> None:
    log = log_of(tmp_path, head(devices(8), "alltoallv_perf") + table(8, op="all_gather"))
    assert (log.op, log.ranks) == ("all_to_all", 8)
    assert log.remarks == (
        "alltoallv sends unequal parts; its rows are taken as all_to_all of the same size",
    )


def test_rows_that_a_terminal_or_another_rank_wrapped_are_put_together(tmp_path: Path) -> None:
    drawn = random.Random(7)
    text = ""
    for line in (head(devices(8)) + table(8)).splitlines():
        if line.startswith("  "):
            blank = [match.start() for match in re.finditer(r"(?<=\S) ", line)][5:]
            cut = drawn.choice(blank)
            line = f"{line[:cut]}\n{noise(drawn.randrange(2))}{line[cut:]}"
        text += line + "\n"
    assert figures(log_of(tmp_path, text)) == expected()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_logs_of_powershell_and_logs_with_nuls_are_read(tmp_path: Path, encoding: str) -> None:
    text = head(devices(8)) + table(8)
    assert figures(log_of(tmp_path, text.replace("\n", "\r\n").encode(encoding))) == expected()
    assert figures(log_of(tmp_path, b"\0" * 5000 + text.encode() + b"\0" * 9)) == expected()


def test_times_of_several_roots_are_one_row_and_are_said(tmp_path: Path) -> None:
    text = head(devices(4), "broadcast_perf") + table(4, op="broadcast", cycles=[1.0, 1.0])
    lines = text.splitlines(keepends=True)
    rows = [at for at, line in enumerate(lines) if line.startswith("  ")]
    for number, at in enumerate(rows):
        lines[at] = lines[at].replace("   sum      -1", f"  none{number // 10:8d}")
    path = tmp_path / "job.out"
    path.write_text("".join(lines))
    (log,) = read_nccl_tests(path)
    assert log.remarks == ("times of 2 roots are combined for each size",)
    assert len(read_sweep(path).rows) == 20


def test_results_whose_time_and_bandwidth_contradict_each_other_are_left_out(
    tmp_path: Path,
) -> None:
    text = head(devices(8)) + table(8)
    damaged = text.replace("  691.09 ", "  681.09 ", 1)
    assert damaged != text
    log = log_of(tmp_path, damaged)
    assert len(log.rows) == 19
    assert log.remarks == ("1 result whose algbw is not size / time is left out",)
    slower = (
        re.sub(r"sum      -1  .{7}", "sum      -1  9999.99", line) for line in text.splitlines()
    )
    log = log_of(tmp_path, "\n".join(slower))
    assert len(log.rows) == 20
    assert log.remarks == ("algbw of 10 of 20 results is not size / time; the times are used",)
    document = as_json(8, [(rank, 0) for rank in range(8)])
    document["results"][8]["in_place"] = {  # type: ignore[index]
        **document["results"][8]["in_place"],  # type: ignore[index]
        "time": 700.0,
    }
    assert len(log_of(tmp_path, json.dumps(document), "a.json").rows) == 19


def test_columns_that_nobody_knows_yet_are_skipped(tmp_path: Path) -> None:
    text = head(devices(8)) + table(8)
    header = next(line for line in text.splitlines() if "type" in line)
    named = header.replace("   root", "   root    ctas").replace("#wrong", "#wrong  state")
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    for row in rows:
        parts = in_pieces(row)
        text = text.replace(row, f"{parts[0]}      32{parts[1]}     ok{parts[2]}     ok")
    log = log_of(tmp_path, text.replace(header, named))
    assert figures(log) == expected()
    assert log.remarks == ()
