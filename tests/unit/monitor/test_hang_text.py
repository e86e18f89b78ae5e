from __future__ import annotations

from typing import Any

from commprof.monitor.watchdog.hang_text import hang_text


def rank(number: int, host: str, **state: Any) -> dict[str, Any]:
    waits = {
        "op": "all_reduce",
        "seq": 25,
        "group": "0",
        "bucket": 2,
        "bytes_in": 4096,
        "pending_s": 1.0 + number / 1000,
    }
    known = {"process": "running", "step": 20, "phase": "backward", "pending": [waits]}
    ids = {"rank": number, "host": host, "topology": "", "pid": 1000 + number}
    return {**ids, **known, "last_record_s_ago": 1.5, "next_collective": {"0": 26}, **state}


def text(ranks: list[dict[str, Any]], accused: list[int]) -> str:
    value = {
        "number": 1,
        "host": "n0",
        "found": "2026-01-01T00:00:00.000+00:00",
        "sentence": "ranks did not arrive",
        "reasons": ["they were last seen in step 20"],
        "accused": [{"rank": number} for number in accused],
        "ranks": ranks,
        "stacks": [],
        "ended_after_s": None,
    }
    return hang_text(value)


def job(late: list[int], **state: Any) -> list[dict[str, Any]]:
    idle = {"phase": "after forward", "pending": [], **state}
    return [
        rank(number, f"n{number // 8:03}", **(idle if number in late else {}))
        for number in range(1024)
    ]


def test_each_of_a_few_ranks_has_its_lines() -> None:
    found = text([rank(0, "n0"), rank(1, "n0", pending=[])], [1])
    assert "rank 0 (n0, process 1000, running): step 20, backward, last record 1.5 s ago" in found
    assert "    pending for 1.0 s: all_reduce 25 of group '0', bucket 2, 4096 bytes" in found
    assert "rank 1 (n0, process 1001, running): step 20" in found
    assert "\non n0" not in found


def test_1024_ranks_are_told_by_state_with_those_at_fault_first() -> None:
    lines = text(job([341]), [341]).splitlines()
    assert len(lines) == 11
    assert lines[5:9] == [
        "on n042: rank 341",
        "",
        "rank 341 (n042; running): step 20, after forward, last record 1.5 s ago",
        "ranks 0-340, 342-1023 (n000-n127; running): step 20, backward, last record 1.5 s ago",
    ]
    assert lines[9] == (
        "    pending: all_reduce 25 of group 0, bucket 2, 4096 bytes, for 1.0 to 2.0 s"
    )


def test_ten_hosts_with_most_ranks_at_fault_are_listed_with_their_switches() -> None:
    late = [*range(0, 1024, 16), *range(600, 608)]
    found = text(job(late, topology="core.leaf7.n075"), late)
    hosts = [line for line in found.splitlines() if line.startswith("on ")]
    assert hosts[0] == "on n075 (network switches: core, leaf7): ranks 600-607"
    assert (len(hosts), hosts[-1]) == (11, "on 55 more hosts: 55 ranks")


def test_states_beyond_ten_are_counted() -> None:
    ranks = [rank(number, "n0", step=number) for number in range(40)]
    assert "ranks 10-39: in 30 other states, see the JSON file" in text(ranks, [])
