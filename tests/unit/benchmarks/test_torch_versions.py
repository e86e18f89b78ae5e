from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import torch_versions
from benchmarks.judging.results_file import contexts, write_part
from benchmarks.torch_ddp_tests import RESULT, counts
from benchmarks.torch_versions import MINORS, demands, name, table

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

import installed_torch


def figures(torch: str, failed: tuple[str, ...] = (), **skipped: int) -> dict[str, Any]:
    return {
        "torch": torch,
        "python": "3.11.7",
        "build_s": 71.2,
        "module_bytes": 3_456_789,
        "tests": {"passed": 100, "failed": list(failed), "skipped": skipped},
        "collective_us": {"call()": [0.5, 0.7, 0.6]},
    }


def of(*versions: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name(version): version for version in versions}


def cells(text: str) -> list[list[str]]:
    rows = [row for row in text.splitlines() if row.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_supported_minors_begin_with_the_oldest_that_installs() -> None:
    assert MINORS[0] == "{}.{}".format(*installed_torch.MINIMUM)
    assert len({*MINORS}) == len(MINORS)


def test_rows_of_the_table_are_ordered_by_torch_version() -> None:
    parts = of(figures("2.15.0+cu130"), figures("2.9.1"), figures("2.10.0+cpu", no_gpu=3))
    text = table(parts)
    rows = cells(text)
    assert [row[0] for row in rows] == ["2.9.1", "2.10.0+cpu", "2.15.0+cu130"]
    assert rows[1][1:] == ["3.11.7", "71", "100", "0", "3", "0.60 [0.50, 0.70]", "3.46"]
    assert text.endswith("\n\nSkipped: no_gpu (3 with 2.10.0+cpu)")


def test_demands_need_all_torch_minors_and_no_failing_test() -> None:
    parts = of(*(figures(f"{minor}.0") for minor in MINORS))
    assert all(one.met for one in demands(parts))
    built, *_ = demands(of(figures("2.15.0")))
    assert (built.figure, built.met) == (f"1 of {len(MINORS)}", False)
    parts |= of(figures("2.15.0", failed=("tests.test_x.test_y",)))
    missed = [one for one in demands(parts) if not one.met]
    assert [one.what for one in missed] == [
        "torch 2.15, Python 3.11, tests that fail: tests.test_x.test_y"
    ]


def test_a_new_measurement_replaces_that_of_the_same_torch_version(tmp_path: Path) -> None:
    path = tmp_path / "torch_versions.json"
    for build_s in (70, 90):
        version = {**figures("2.15.0"), "build_s": build_s}
        write_part(path, name(version), version, git_commit="of the clone")
    assert [one["git_commit"] for one in contexts(path)] == ["of the clone"]
    write_part(path, name(figures("2.14.1")), figures("2.14.1"))
    rows = cells(torch_versions.beside(path))
    assert [(row[0], row[2]) for row in rows] == [("2.14.1", "71"), ("2.15.0", "90")]


def test_torch_tests_are_counted_by_outcome_with_and_without_capture() -> None:
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
            "alike": {"passed": ["test_a", "test_f"], "skipped": ["test_d"], "timeout": ["test_e"]},
            "different": {"test_b": ["passed", "failed"], "test_c": ["failed", "passed"]},
        }
    ]
    assert counts({}, ["test_a"], 2)["modules"].popitem()[1]["run"] == 0
    assert RESULT.parent.is_dir()


def test_torch_tests_are_counted_separately_for_each_module() -> None:
    every = [
        *("test_a", "test_b", "DdpComparisonTest.test_a", "DdpUnderDistAutogradTest.test_c"),
        "RpcTest.test_d",
    ]
    done = {
        "test_a": ["passed", "passed"],
        "DdpUnderDistAutogradTest.test_c": ["skipped", "skipped"],
        "DdpComparisonTest.test_a": ["passed", "failed"],
    }
    modules = counts(done, every, 2)["modules"]
    place = "torch.testing._internal.distributed"
    found = {name: (module["run"], module["listed"]) for name, module in modules.items()}
    assert found == {
        f"{place}.ddp_under_dist_autograd_test": (2, 2),
        f"{place}.distributed_test": (1, 2),
        f"{place}.rpc.rpc_test": (0, 1),
    }
    over_rpc = modules[f"{place}.ddp_under_dist_autograd_test"]
    assert (over_rpc["skipped"], over_rpc["passed_without"], over_rpc["passed_with"]) == (1, 1, 0)
    assert over_rpc["different"] == {"DdpComparisonTest.test_a": ["passed", "failed"]}
    assert over_rpc["alike"] == {"skipped": ["DdpUnderDistAutogradTest.test_c"]}
