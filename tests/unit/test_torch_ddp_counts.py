"""What ``benchmarks/torch_ddp_tests.py`` keeps of its outcomes."""

from __future__ import annotations

from benchmarks.torch_ddp_tests import RESULT, counts


def test_counts_by_how_they_ended() -> None:
    done = {
        "test_a": ["passed", "passed"],
        "test_b": ["passed", "failed"],
        "test_c": ["failed", "passed"],
        "test_d": ["skipped", "skipped"],
        "test_e": ["timeout", "timeout"],
        "test_f": ["passed", "passed"],
    }
    found = counts(done, [*done, "test_g"], 2)
    assert found["world_size"] == 2
    assert list(found["modules"].values()) == [
        {
            "listed": 7,
            "run": 6,
            "passed_without": 3,
            "passed_with": 3,
            "skipped": 1,
            "not_passed_either_way": ["test_e"],
            "different": {"test_b": ["passed", "failed"], "test_c": ["failed", "passed"]},
        }
    ]
    assert counts({}, ["test_a"], 2)["modules"].popitem()[1]["run"] == 0
    assert RESULT.parent.is_dir()
