"""Names the programs whose files commprof does not read, for a refusal that helps.

Each program is recognised by words that its own sources print. None of these files holds all data
that a cost or a comparison needs: the ranks, their hosts, and times of single sizes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from commprof.files import open_regular

#: This many bytes of a file are searched, because a summary may stand at the end of a long training
#: log.
_MOST_BYTES: Final = 256 << 20
_CHUNK_BYTES: Final = 1 << 20
#: Longest text that a pattern matches.
_OVERLAP_BYTES: Final = 1 << 10

_NO_RANKS: Final = "which do not tell how many ranks took part"
_TELLS_NO_RANKS: Final = "which does not tell how many ranks took part"
_TOOLS: Final = (
    (rb"# OSU [^\r\n]{1,60}(?:Test|Benchmark)", "a result of the OSU Micro-Benchmarks", _NO_RANKS),
    (
        rb"#\s+Intel\(R\) MPI Benchmarks",
        "a result of the Intel MPI Benchmarks",
        "which measure MPI's own collectives, not those of torch",
    ),
    (
        rb"Comm\. Op\s+Message Size\s+Count\s|comm op: \w+ \| time \(ms\)",
        "a log of DeepSpeed's communication logger",
        "which rounds sizes and does not tell ranks or hosts",
    ),
    (
        rb"size\(B\)\s+count\(elems\)\s+type\s+time",
        "a result of nccom-test (AWS Neuron)",
        _TELLS_NO_RANKS,
    ),
    (
        rb"data_size\(Bytes\):\s*\|\s*ave?g_time\(us\)",
        "a result of hccl_test (Ascend)",
        _TELLS_NO_RANKS,
    ),
    (
        rb"#\s+Initializing MSCCL\+\+",
        "a result of mscclpp-test",
        _TELLS_NO_RANKS,
    ),
    (
        rb"Job summary\s+=+\s+\(?Nodes|Communicators\.\.\. \(\d|\"communicators_count\"\s*:",
        "a status of a job by NCCL's RAS (ncclras)",
        "which shows ranks and counts of calls, not what a rank waits in",
    ),
    (
        rb"#bytes\s+#iterations\s+(?:BW peak|t_min)",
        "a result of perftest (ib_write_bw and its kind)",
        "which measure a link, not a collective",
    ),
)
_ANY: Final = re.compile(b"|".join(b"(" + pattern + b")" for pattern, _, _ in _TOOLS))


def other_tool(path: Path) -> str:
    """Text on another program's file, and on why it is not read; empty if not recognised."""
    tail, searched = b"", 0
    try:
        with open_regular(path) as opened:
            while searched < _MOST_BYTES and (chunk := opened.read(_CHUNK_BYTES)):
                if match := _ANY.search(tail + chunk):
                    _, what, why = _TOOLS[(match.lastindex or 1) - 1]
                    return f"{what}, {why}"
                tail, searched = chunk[-_OVERLAP_BYTES:], searched + len(chunk)
    except OSError:
        return ""
    return ""
