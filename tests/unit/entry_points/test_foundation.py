from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed as dist

from commprof import address
from commprof.address import own_address
from commprof.files import read_json, replace_file, replacing
from commprof.text import (
    clauses,
    counted,
    in_seconds,
    listed,
    name_list,
    named_ranks,
    plain_digits,
    plural,
    printable,
    rank_list,
    with_ranks,
)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (1, "1 step"),
        (0, "0 steps"),
        (7, "7 steps"),
        ([1], "1 step"),
        ([1, 2, 4], "1, 2 and 4 steps"),
    ],
)
def test_counts_are_worded_with_singular_or_plural(numbers: int | list[int], said: str) -> None:
    assert counted(numbers, "step") == said


def test_lists_and_ranks_are_joined_in_words() -> None:
    assert listed(["a"]) == "a"
    assert listed((1, 2)) == "1 and 2"
    assert named_ranks([3]) == "rank 3"
    assert named_ranks([0, 2]) == "ranks 0, 2"
    assert named_ranks([]) == "no rank"
    assert plural(2, "core") == "cores"


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (range(128), "ranks 0-127"),
        ([*range(4), *range(8, 12), 299], "ranks 0-3, 8-11, 299"),
        ([11, 299, 2, 1, 0, 3, 8, 10, 9, 8], "ranks 0-3, 8-11, 299"),
        ([5, 6], "ranks 5, 6"),
        ([5, 5], "rank 5"),
        (range(3, 1024, 8), "ranks 3-1019:8"),
        ([0, 2, 4], "ranks 0, 2, 4"),
        ([0, 4, 5, 6, 7], "ranks 0, 4-7"),
        ([0, 1, 3, 5, 7, 9, 100], "ranks 0, 1-9:2, 100"),
    ],
)
def test_many_ranks_are_named_by_ranges(ranks: Sequence[int], said: str) -> None:
    assert named_ranks(ranks) == said


def test_lists_of_ranks_give_back_exactly_their_ranks() -> None:
    drawn = random.Random(5)
    for _ in range(300):
        ranks = {rank for rank in range(300) if drawn.random() < drawn.choice((0.02, 0.5, 0.98))}
        listed_ranks: list[int] = []
        for part in filter(None, rank_list(ranks).split(",")):
            first, _, rest = part.partition("-")
            last, _, step = rest.partition(":")
            listed_ranks += range(int(first), int(last or first) + 1, int(step or 1))
        assert listed_ranks == sorted(ranks)


def test_a_sentence_lists_few_ranges_and_counts_the_other_ranks() -> None:
    scattered = [number**2 + 3 * number for number in range(150)]
    said = named_ranks(scattered)
    assert said.startswith("ranks 0, 4, 10, 18, ")
    assert said.endswith(f" and {150 - 24} more")
    assert named_ranks(scattered, most=None).count(",") == 149


def test_names_that_end_in_successive_numbers_are_listed_as_a_range() -> None:
    assert name_list([], 8) == ""
    assert name_list(["gpu7"], 8) == "gpu7"
    assert name_list([f"n{number:03}" for number in range(98, 103)], 8) == "n098-n102"
    assert name_list(["b", "a2", "a1", "a9", "a10", "b"], 8) == "a1-a2, a9-a10, b"
    assert name_list(["9", "10", "12"], 8) == "9-10, 12"
    assert name_list(["a1", "a2", "c", "d"], 1) == "a1-a2 and 2 more"
    assert name_list(["x" + "9" * 5000], 1) == "x" + "9" * 5000


def test_what_is_the_same_for_several_ranks_is_said_once() -> None:
    damaged = [*((rank, "cut off") for rank in range(128)), (130, "cut off"), (7, "no end")]
    assert with_ranks(damaged) == ["ranks 0-127, 130: cut off", "rank 7: no end"]
    assert with_ranks(damaged[:128], range(128)) == ["all ranks: cut off"]
    gone = "are dead: their processes are gone"
    dead = [(4, "is dead: process 4", gone), (9, "is dead: process 9", gone)]
    assert clauses(dead) == ["ranks 4, 9 are dead: their processes are gone"]
    assert clauses(dead[:1]) == ["rank 4 is dead: process 4"]


def test_numbers_are_printed_without_an_exponent() -> None:
    assert in_seconds(1_800_000) == "1800 s"
    assert in_seconds(25_095) == "25.1 s"
    assert [plain_digits(x, 4) for x in (12_345.6, 999.96, 0.5)] == ["12346", "1000", "0.5"]
    assert [plain_digits(x) for x in (-1234.5, 99.96, 0.0)] == ["-1234", "100", "0"]


def test_control_characters_are_escaped_for_a_terminal() -> None:
    assert printable("a\nb\x1b[2J\x00") == "a b\\x1b[2J\\x00"


def test_replace_file_replaces_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, "[1]")
    replace_file(path, b"[1, 2]")
    assert read_json(path) == [1, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_replacement_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    replace_file(path, "old")

    def fail() -> None:
        with replacing(path) as partial:
            partial.write_text("half of the n")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


LEADS_OUT = "198.51.100.7"


class Store:
    def __init__(self, host: str) -> None:
        self.host = host


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_own_address_is_the_one_that_leads_to_the_store(host: str) -> None:
    assert own_address(Store(host)) in ("127.0.0.1", "::1")


def test_own_address_is_found_through_prefix_stores() -> None:
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    assert own_address(dist.PrefixStore("a", dist.PrefixStore("b", store))) == "127.0.0.1"


def test_own_address_uses_master_addr_for_a_store_without_a_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert own_address(dist.HashStore()) == "127.0.0.1"


def test_own_address_prefers_the_interface_of_gloo_socket_ifname(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    assert own_address(Store(LEADS_OUT)) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_if")
    with pytest.raises(OSError):  # noqa: PT011  # the kernel's
        own_address(Store("127.0.0.1"))


@pytest.mark.parametrize(
    ("host", "expected"), [("node0", LEADS_OUT), ("127.0.0.2", "127.0.1.1"), ("", LEADS_OUT)]
)
def test_own_address_is_loopback_only_for_a_loopback_store(
    monkeypatch: pytest.MonkeyPatch, host: str, expected: str
) -> None:
    def towards(asked: str) -> str:
        return LEADS_OUT if asked == "192.0.2.1" else "127.0.1.1"

    monkeypatch.setattr(address, "_towards", towards)
    assert own_address(Store(host)) == expected
