from __future__ import annotations

from pathlib import Path

from benchmarks.own_cost import instructions


def test_instruction_counts_are_read_for_steps_of_the_first_thread(tmp_path: Path) -> None:
    for part in range(1, 8):
        for thread in (1, 2):
            text = f"thread: {thread}\nevents: Ir\nfn=(1) step\n1 5\ntotals: {part}{thread}\n"
            (tmp_path / f"counts.77.{part}-0{thread}").write_text(text)
    assert instructions.counts_in(tmp_path, 77, steps=5) == [21, 31, 41, 51, 61]


def test_instructions_per_mode_are_compared_with_a_plain_process() -> None:
    cell = {
        "plain": [1000, 1001, 5000],
        "always-on": [1003, 1004, 9000],
        "full": [1004, 1004, 1004],
    }
    counts = {"steps_small_1": cell}
    always_on, full = instructions.demands(counts)
    assert (always_on.met, full.met) == (False, True)
    assert "1 gloo rank, always-on" in always_on.what
    assert always_on.figure == "1.0030"
    assert "1.0030 (+0 thousand)" in instructions.table(counts)
