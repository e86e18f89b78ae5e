"""Translates the names of element types, and gives the sizes of the types."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from commprof.trace.schema import ELEMENT_BYTES

#: Maps a type's name in Python ("torch.float32") or NCCL ("ncclFloat32") to c10d's name ("Float").
#: The keys are in lower case and have no prefix. torch writes such names in the annotations of CUDA
#: graphs, and in its recorder over CUPTI.
_IN_C10D: Final = {
    **{"float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16"},
    **{"int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte"},
    **{"complex32": "ComplexHalf", "complex64": "ComplexFloat", "complex128": "ComplexDouble"},
    **{"float8e4m3": "Float8_e4m3fn", "float8e5m2": "Float8_e5m2", "bool": "Bool"},
    **{name.lower(): name for name in ELEMENT_BYTES if name.startswith(("Float8", "UInt"))},
}
#: Like ``_IN_C10D``, for names from which a prefix was removed. Such a name may also be c10d's own
#: ("torch.long"). A name without a prefix may be a C++ type ("float"), which is not replaced.
_AFTER_PREFIX: Final = {name.lower(): name for name in ELEMENT_BYTES} | _IN_C10D
_PREFIXES: Final = ("torch.", "nccl", "c10::")
#: Bytes of an element by the name of the type, in lower case: c10d's names, and C++ names without
#: "c10::".
_BYTES: Final = {
    **{name.lower(): size for name, size in ELEMENT_BYTES.items()},
    **{"signed char": 1, "unsigned char": 1, "unsigned short": 2, "unsigned int": 4},
    **{"long int": 8, "unsigned long": 8, "complex<float>": 8, "complex<double>": 16},
    **dict.fromkeys(("complex<at::half>", "complex<c10::half>"), 4),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
}


@lru_cache(maxsize=1 << 10)
def c10d_type(name: str) -> str:
    """Translates a name from Python or NCCL to c10d's name; returns other names unchanged."""
    bare = name.lower()
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix)
    return (_IN_C10D if bare == name.lower() else _AFTER_PREFIX).get(bare, name)


@lru_cache(maxsize=1 << 10)
def element_bytes(type_name: str) -> int:
    """Returns the bytes of one element of a type; 0 if the type is not known."""
    bare = c10d_type(type_name).lower().removeprefix("c10::").removeprefix("torch.")
    return _BYTES.get(bare, 0)
