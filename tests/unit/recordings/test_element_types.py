from __future__ import annotations

from pathlib import Path

import pytest

from commprof.analysis.late.dumped_hang import diagnosis
from commprof.recordings.element_types import c10d_type, element_bytes
from commprof.recordings.flight_recorder import read_dumps
from commprof.recordings.profiler_calls import described
from tests.support.builders.flight_dumps import dump, entry, write_dumps


@pytest.mark.parametrize(
    ("name", "named", "size"),
    [
        *(("Float", "Float", 4), ("float32", "Float", 4), ("torch.float32", "Float", 4)),
        *(("ncclBfloat16", "BFloat16", 2), ("ncclInt64", "Long", 8), ("ncclUint8", "Byte", 1)),
        *(("ncclFloat8e4m3", "Float8_e4m3fn", 1), ("torch.float8_e5m2", "Float8_e5m2", 1)),
        *(("float", "float", 4), ("torch.long", "Long", 8)),
        *(("ncclHalf", "Half", 2), ("ncclInt", "Int", 4), ("c10::Half", "Half", 2)),
        *(("torch.uint16", "UInt16", 2), ("bool", "Bool", 1), ("complex64", "ComplexFloat", 8)),
        *(("c10::BFloat16", "BFloat16", 2), ("long int", "long int", 8)),
        *(("float4_e2m1fn_x2", "float4_e2m1fn_x2", 1), ("torch.float8_e8m0fnu",) * 2 + (1,)),
        *(("TensorList", "TensorList", 0), ("", "", 0)),
    ],
)
def test_a_type_has_one_name_and_one_size(name: str, named: str, size: int) -> None:
    assert (c10d_type(name), element_bytes(name)) == (named, size)


def test_annotations_of_graphs_name_types_as_python_does() -> None:
    told = {"In msg nelems": "1000", "Out msg nelems": "1000", "Group size": "2"}
    call = described("allreduce", {**told, "dtype": "bfloat16"}, 2)
    assert (call.dtype, call.bytes_in, call.bytes_out) == ("BFloat16", 2000, 2000)


def test_dumps_of_the_recorder_over_cupti_have_sizes(tmp_path: Path) -> None:
    waits = entry("0", 2, dtype="ncclFloat32", count=1000)
    other = entry("0", 2, dtype="torch.float32", count=500)
    folder = write_dumps(tmp_path / "dumps", *(dump({"0": [0, 1]}, one) for one in (waits, other)))
    for rank in (0, 1):
        (folder / f"nccl_trace_rank_{rank}").rename(folder / f"comm_lib_trace_rank_{rank}")
    dumps, problems = read_dumps(folder)
    assert [one.entries[0].bytes_in for one in dumps] == [4000, 2000]
    assert not problems
    (mismatch,) = diagnosis(folder).mismatches
    issued = [(one.dtype, one.size_bytes, ranks) for one, ranks in mismatch.issued]
    assert issued == [("Float", 4000, (0,)), ("Float", 2000, (1,))]
