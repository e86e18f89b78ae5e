"""Writes Python tables from C++ headers: `python tools/make_tables.py [DIRECTORY]`.

The headers define the codes of the trace format and the compression schemes. Their macros are read
as text: neither a compiler nor torch is needed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD, TRACE_FORMAT = "csrc/core/record.h", "csrc/core/trace_format.h"
RECORD_FIELDS = "csrc/core/record_fields.inc"
MODE = "csrc/core/modes/mode.h"
HISTOGRAM, CLOCK = "csrc/always_on/summary/histogram.h", "csrc/clock/clock_track.h"
SCHEMES = "csrc/tune/compress/scheme_table.h"
#: numpy types of a record's fields, by the type in C++.
_TYPES = {"uint64_t": "<u8", "uint32_t": "<u4", "uint8_t": "u1", "Kind": "u1", "Op": "u1"}

Row = tuple[str | float | bool, ...]


def codes(root: Path = ROOT) -> str:
    """Returns the text of commprof/trace/codes.py.

    Raises:
        ValueError: a header lacks a table, which the message names.
    """
    record, trace_format = (root / RECORD).read_text(), (root / TRACE_FORMAT).read_text()
    kinds = [str(row[1]) for row in rows(record, "COMMPROF_KINDS")]
    phases = [str(row[1]) for row in rows(record, "COMMPROF_PHASES")]
    blocks = enumerators(trace_format, "BlockType")
    constants = dict(re.findall(r"inline constexpr uint32_t k(\w+) =\s*(\w+);", record))
    format_constants = dict(
        re.findall(r"inline constexpr uint32_t k(\w+) =\s*(\w+);", trace_format)
    )
    special = ("SamplesUnknown", "NoSeq")
    flags = {name: value for name, value in constants.items() if name not in special}
    magic = re.findall(r"kTraceMagic\[8\] = \{(.*?)\};", trace_format)[0]
    steps = dict(re.findall(r"k(Step\w+) = (\d+),", record))
    histogram, clock = (root / HISTOGRAM).read_text(), (root / CLOCK).read_text()
    parts = [
        _doc(
            "Codes, layout and shared numbers of the trace format.",
            (RECORD, RECORD_FIELDS, TRACE_FORMAT, MODE, HISTOGRAM, CLOCK),
        ),
        "from __future__ import annotations\n",
        "from enum import IntEnum\nfrom typing import Final\n",
        f"TRACE_MAGIC: Final = b{''.join(re.findall(r'[A-Z]', magic))!r}",
        f"TRACE_VERSION: Final = {_number(format_constants['TraceVersion'])}",
        f"BLOCK_MAGIC: Final = {_number(format_constants['BlockMagic'])}\n",
        _enum("BlockType", "Types of blocks in a trace file.", blocks),
        _enum(
            "Kind",
            "Kinds of records; ``RECORD_FIELDS`` lists the fields that each kind uses.",
            {name: str(code) for code, name in enumerate(kinds)},
        ),
        _enum(
            "Phase",
            "Phases of a step on the training thread.",
            {name: str(code) for code, name in enumerate(phases)},
        ),
        *(f"FLAG_{_upper(name)}: Final = {_number(value)}" for name, value in flags.items()),
        "\n#: Source of a step boundary: the script, an update, or an update that GradScaler "
        "skipped.",
        *(f"{_upper(name)}: Final = {value}" for name, value in steps.items()),
        "\n#: Number of samples of a phase if the samples cannot be counted.",
        f"SAMPLES_UNKNOWN: Final = {_number(constants['SamplesUnknown'])}",
        "#: ``seq`` of a message that cannot be distinguished from others.",
        f"NO_SEQ: Final = {_number(constants['NoSeq'])}\n",
        "#: A wait shorter than this many ns did not block: the operation was already complete.",
        f"BLOCKED_NS: Final = {constant(record, 'BlockedNs')}",
        "#: A loop counts as unmarked after this many backward passes that communicated, without a",
        "#: step mark.",
        f"SURELY_UNMARKED: Final = {constant(record, 'SurelyUnmarked')}",
        "#: Buckets of a histogram for each power of two, and the number of powers of two.",
        f"PER_OCTAVE: Final = {constant(histogram, 'PerOctave')}",
        f"OCTAVES: Final = {constant(histogram, 'Octaves')}",
        "#: Largest drift of a clock; largest change of a drift between comparisons of clocks.",
        f"MOST_DRIFT: Final = {constant(clock, 'MostDrift')}",
        f"UNSEEN_WANDER: Final = {constant(clock, 'UnseenWander')}\n",
        "#: Modes of capture, by code.",
        _tuple("MODES", (row[1] for row in rows((root / MODE).read_text(), "COMMPROF_MODES"))),
        "#: Stages of a compressed bucket, by the code in ``aux`` of a span.",
        _tuple("STAGES", enumerators(record, "Stage")),
        "#: Operations as c10d names them, by code.",
        _tuple("OPS", (row[1] for row in rows(record, "COMMPROF_OPS"))),
        "#: Ranks that a rank awaits in each operation; ``csrc/core/record.h`` explains the "
        "values.",
        _tuple("AWAITS", (str(row[3]).lower() for row in rows(record, "COMMPROF_OPS"))),
        "#: NCCL's algorithms and protocols, by code; code 0 means unknown.",
        _tuple("NCCL_ALGORITHMS", (row[1] for row in rows(record, "COMMPROF_NCCL_ALGORITHMS"))),
        _tuple("NCCL_PROTOCOLS", (row[1] for row in rows(record, "COMMPROF_NCCL_PROTOCOLS"))),
        "#: Name and type of the members of a record, in order.",
        _tuple("RECORD_MEMBERS", members(record)),
        "#: Kind, name, member and content of each field; ``csrc/core/record_fields.inc`` explains "
        "them.",
        _tuple("RECORD_FIELDS", fields(root)),
    ]
    return "\n".join(parts)


def scheme_table(root: Path = ROOT) -> str:
    """Returns the text of commprof/tune/compressors/scheme_table.py.

    Raises:
        ValueError: the header lacks a table, which the message names.
    """
    header = (root / SCHEMES).read_text()
    schemes = (*rows(header, "COMMPROF_SCHEMES"), *rows(header, "COMMPROF_TRANSPORT_SCHEMES"))
    parts = [
        _doc("Compression schemes and their options.", (SCHEMES,)),
        "from __future__ import annotations\n\nfrom typing import Final\n",
        "#: Columns: scheme in C++, name, default of error feedback, exchange, meaning.",
        _tuple(
            "SCHEMES",
            (
                (scheme, name, feedback, _snake(exchange), meaning)
                for scheme, _, name, feedback, exchange, meaning in schemes
            ),
        ),
        "#: Columns: scheme of the option (None: every scheme that compresses), name,",
        "#: minimum, maximum, default, True if only whole numbers are allowed, meaning.",
        _tuple("OPTIONS", rows(header, "COMMPROF_SCHEME_OPTIONS")),
    ]
    return "\n".join(parts)


def rows(header: str, macro: str) -> list[Row]:
    """Returns the rows of an X macro; an enumerator becomes a text.

    Raises:
        ValueError: the header does not define the macro.
    """
    found = re.search(rf"#define {macro}\(X\)((?:.*\\\n)*.*)", header)
    if found is None:
        raise ValueError(f"{macro} is not defined")
    body = re.sub(r"/\*.*?\*/", "", found[1].replace("\\\n", "\n"), flags=re.S)
    return [_literal(call) for call in _calls(body)]


def constant(header: str, name: str) -> str:
    """Returns the value of a constant of C++ as text.

    Raises:
        ValueError: the header does not define the constant.
    """
    found = re.search(rf"constexpr \w+ k{name} = ([\w.+-]+);", header)
    if found is None:
        raise ValueError(f"k{name} is not defined")
    return found[1]


def enumerators(header: str, name: str) -> dict[str, str]:
    """Returns the codes of an enum class, by their name in snake case.

    Raises:
        ValueError: the header does not define the enum.
    """
    found = re.search(rf"enum class {name} : \w+ \{{(.*?)\}};", header, re.S)
    if found is None:
        raise ValueError(f"enum {name} is not defined")
    values: dict[str, str] = {}
    body = re.sub(r"//.*", "", found[1])
    for enumerator, code in re.findall(r"\bk(\w+)(?: = (\d+))?(?=[,\s]|$)", body):
        values[_snake(enumerator)] = code or str(len(values))
    return values


def members(header: str) -> list[Row]:
    """Returns the name and numpy type of each member of a record.

    Raises:
        ValueError: the header does not define Record.
    """
    found = re.search(r"struct alignas\(64\) Record \{(.*?)\n\};", header, re.S)
    if found is None:
        raise ValueError("Record is not defined")
    return [(name, _TYPES[kind]) for kind, name in re.findall(r"^  (\w+) (\w+) =", found[1], re.M)]


def fields(root: Path = ROOT) -> list[Row]:
    """Returns the kind, name, member and content of each field of each kind of record."""
    calls = _calls(re.sub(r"^//.*$", "", (root / RECORD_FIELDS).read_text(), flags=re.M))
    return [
        (_snake(kind), _snake(name), slot, _snake(content))
        for kind, name, slot, content, _ in map(_literal, calls)
    ]


def formatted(text: str, name: str, *rules: str) -> str:
    """Returns the text as ``make format`` formats it, after ruff's fixes for ``rules``."""
    ruff = str(Path(sys.executable).parent / "ruff")
    commands = [["format"]] if not rules else [["check", "--fix-only", *rules], ["format"]]
    for command in commands:
        arguments = [ruff, *command, "--quiet", f"--stdin-filename={name}", "-"]
        text = subprocess.run(
            arguments, input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


def _calls(body: str) -> list[str]:
    """Returns the arguments of each X(...) of a table."""
    return re.findall(r"X\(((?:\"[^\"]*\"|[^()\"])*)\)", body)


def _literal(call: str) -> Row:
    words = {"true": "True", "false": "False"}
    text = re.sub(
        r"\"[^\"]*\"|\b[A-Za-z]\w*\b",
        lambda m: m[0] if m[0].startswith('"') else words.get(m[0], f'"{m[0]}"'),
        " ".join(call.split()),
    )
    return tuple(ast.literal_eval(f"({text},)"))


def _doc(what: str, headers: Sequence[str]) -> str:
    made = "\n".join(("Generated by tools/make_tables.py; run `make tables`. From:", *headers))
    return f'"""{what}\n\n{made}\n"""\n'


def _enum(name: str, meaning: str, values: dict[str, str]) -> str:
    body = "\n".join(f"    {text.upper()} = {code}" for text, code in values.items())
    return f'\nclass {name}(IntEnum):\n    """{meaning}"""\n\n{body}\n\n'


def _tuple(name: str, values: Iterable[object]) -> str:
    body = "\n".join(f"    {value!r}," for value in values)
    return f"{name}: Final = (\n{body}\n)\n"


def _upper(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


def _snake(name: object) -> str:
    return _upper(str(name)).lower()


def _number(text: str) -> str:
    return "0xffffffff" if text == "UINT32_MAX" else text


TABLES = {
    "commprof/trace/codes.py": codes,
    "commprof/tune/compressors/scheme_table.py": scheme_table,
}

if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for place, table in TABLES.items():
        if table is scheme_table and not (ROOT / SCHEMES).exists():
            continue  # the sources of compressors may be left out
        (directory / place).parent.mkdir(parents=True, exist_ok=True)
        (directory / place).write_text(formatted(table(), place))
