from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.futures import Future

from commprof.errors import CommprofError
from commprof.tune import compressors
from commprof.tune.compressors import torch_ops
from commprof.tune.compressors.torch_ops import TorchOps, add_fp16, encode_fp16, lacks

ROOT = Path(__file__).parents[4]


class Bucket:
    def __init__(self, values: list[float]) -> None:
        self._buffer = torch.tensor(values)

    def is_last(self) -> bool:
        return True

    def index(self) -> int:
        return 0

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return [self._buffer]


class Group:
    def size(self) -> int:
        return 2


class Work:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def get_future(self) -> Future[Any]:
        return self._future


class Gathered(Future[Any]):
    """On a GPU, the future of an all-gather completes before the data has arrived.

    Here the data arrives when ``wait`` is called; the other rank sends the same as this one.
    """

    def __init__(self, out: list[torch.Tensor], part: torch.Tensor) -> None:
        super().__init__()
        self._arrive = [(place, part) for place in out]
        for place in out:
            place.fill_(7)
        self.set_result(out)

    def wait(self) -> Any:
        for place, part in self._arrive:
            place.copy_(part)
        return super().wait()


def hook(text: str) -> TorchOps:
    return TorchOps(Group(), [], compressors.parse(text))


@pytest.mark.parametrize("text", ["fp16", "bf16", "int8", "topk:ratio=1,feedback=0"])
def test_gathered_data_is_read_only_after_the_all_gather_completes(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "all_gather", lambda out, part, **_: Work(Gathered(out, part)))
    mean = hook(text)(None, Bucket([127.0, -64.0, 1.0])).wait()
    assert mean.tolist() == [127.0, -64.0, 1.0]


def test_a_failed_all_gather_raises_before_the_other_all_gathers_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first: Future[Any] = Future()

    def fail(_: Future[Any]) -> None:
        raise ValueError("rank 1 is gone")

    futures = [first.then(fail), Future[Any]()]
    works = iter(futures)
    monkeypatch.setattr(dist, "all_gather", lambda *_, **__: Work(next(works)))
    mean = hook("int8")(None, Bucket([1.0]))
    assert not mean.done()
    first.set_result(None)
    assert mean.done()
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        mean.wait()


def fp16(values: list[float]) -> tuple[list[float], float]:
    payload = encode_fp16(torch.tensor(values))
    total = torch.zeros(len(values))
    add_fp16(payload, total)
    assert payload[0].dtype == torch.float16
    return total.tolist(), float(payload[1])


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1.0, -0.5], 2.0**14),
        ([98304.0, 1.0], 2.0**-2),
        ([-(2.0**15), 2.0], 0.5),
        ([2.0**-27, 2.0**-26], 2.0**40),
        ([2.0**80, 0.0], 2.0**-66),
        ([2.0**-120, 0.0], 2.0**100),
        ([0.0, 0.0], 2.0**100),
    ],
)
def test_fp16_scales_a_bucket_by_a_power_of_two(values: list[float], scale: float) -> None:
    sent, used = fp16(values)
    assert used == scale
    assert sent == values


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2.0**81])
def test_fp16_makes_a_bucket_nan_for_one_value_that_is_not_finite(value: float) -> None:
    sent, scale = fp16([1.0, value])
    assert math.isnan(scale)
    assert all(math.isnan(one) for one in sent)


@pytest.mark.parametrize(
    "text",
    [
        *("int8:hierarchical=1", "fp16:checksum=1", "topk:ratio=0.01,hierarchical=1"),
        *("none:measure_every=2", "int8:feedback=1,measure_every=2"),
    ],
)
def test_an_option_that_torch_operations_lack_is_refused(text: str) -> None:
    name = re.split("[:,]", text)[-1].partition("=")[0]
    message = f"the option {name!r} of the compressor {text!r} needs the native module"
    assert lacks(compressors.parse(text)).startswith(message)
    with pytest.raises(CommprofError, match=re.escape(message)):
        hook(text)


@pytest.mark.parametrize(
    "text", ["int8:hierarchical=0,checksum=0", "topk:start_step=3", "int8:measure_every=0"]
)
def test_options_that_torch_operations_support_are_accepted(text: str) -> None:
    assert lacks(compressors.parse(text)) == ""


def test_loaded_residuals_are_copied_to_the_devices_of_their_parameters() -> None:
    parameters = [torch.zeros(3, device="meta"), torch.zeros(2)]  # "meta" stands for a GPU
    engine = TorchOps(Group(), parameters, compressors.parse("int8:feedback=1"))
    given = torch.ones(2)
    engine.load_state([(0, "residual", torch.ones(3)), (1, "residual", given)])
    given.zero_()
    kept = {number: values for number, _, values in engine.state()}
    assert kept[0].device.type == "meta"
    assert kept[1].tolist() == [1.0, 1.0]


def test_fp16_has_the_constants_of_the_native_module() -> None:
    header = (ROOT / "csrc/tune/compress/codecs/half_scale.h").read_text()
    found = dict(re.findall(r"constexpr \w+ k(\w+) = ([-\w.]+?)f?;", header))
    assert int(found["MinHalfExponent"]) == torch_ops._LEAST_EXPONENT
    assert int(found["MaxHalfExponent"]) == torch_ops._LARGEST_EXPONENT
    assert float.fromhex(found["LargestMagnitude"]) == torch_ops._LARGEST_VALUE


def test_a_bucket_of_sparse_gradients_is_averaged_as_it_is() -> None:
    class Whole(Group):
        def allreduce(self, tensors: list[torch.Tensor]) -> Work:
            future: Future[Any] = Future()
            future.set_result([tensors[0] + tensors[0]])
            return Work(future)

    bucket = Bucket([0.0, 4.0, 0.0])
    bucket._buffer = bucket._buffer.to_sparse()
    mean = TorchOps(Whole(), [], compressors.topk(0.5))(None, bucket).wait()
    assert mean.to_dense().tolist() == [0.0, 4.0, 0.0]
