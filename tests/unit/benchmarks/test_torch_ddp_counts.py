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
            "outcomes": done,
        }
    ]
    assert counts({}, ["test_a"], 2)["modules"].popitem()[1]["run"] == 0
    assert RESULT.parent.is_dir()


def test_each_module_has_counts_of_its_own() -> None:
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
    assert list(over_rpc["outcomes"]) == sorted([*done][1:])
