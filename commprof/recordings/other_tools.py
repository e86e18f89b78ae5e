"""Recognises files of other programs, so that commprof can say why it does not read them.

A program is recognised by text that it prints, or by the name of its file or of a table in its
database. Most of these files lack data that commprof needs, such as ranks, hosts or times.
"""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from commprof.files import open_regular
from commprof.recordings.containers import Unpacked, is_gzip
from commprof.recordings.nccl_log import LOG_LINE, about_nccl_log, first_failure
from commprof.text import printable

#: Number of bytes of a file that are searched. A summary may stand at the end of a long log.
_MOST_BYTES: Final = 256 << 20
_CHUNK_BYTES: Final = 1 << 20
#: Longest text that a pattern matches, in bytes.
_OVERLAP_BYTES: Final = 1 << 10

NO_COMMAND: Final = (
    "no command reads it (commprof report reads traces of torch.profiler, Flight Recorder dumps "
    "and logs of NCCL Inspector)"
)
_NO_RANKS: Final = "which do not say how many ranks took part"
_NO_TIMES: Final = "which has no times at which kernels ran"
_NO_TRACE: Final = "not a trace of torch.profiler"
_TELLS_NO_RANKS: Final = "which does not say how many ranks took part"
#: For each program: a pattern of its text, a name for its files, and the reason why commprof does
#: not read the files.
_TOOLS: Final = (
    (rb"# OSU [^\r\n]{1,60}(?:Test|Benchmark)", "a result of the OSU Micro-Benchmarks", _NO_RANKS),
    (
        rb"t_avg\[usec\]\s+stddev\[%\]",
        "a result of oneCCL's benchmark",
        "which does not say on which hosts the ranks were",
    ),
    (
        rb"#\s+Intel\(R\) MPI Benchmarks|#bytes\s+#repetitions\s+t_min\[usec\](?![^\r\n]*stddev)",
        "a result of the Intel MPI Benchmarks",
        "which measure MPI's own collectives, not those of torch",
    ),
    (
        rb"Comm\. Op\s+Message Size\s+Count\s|comm op: [^\r\n]{1,300} \| time \(ms\)",
        "a log of DeepSpeed's communication logger",
        "which rounds sizes, does not name ranks or hosts, and in version 0.19.8 adds to each call "
        "the times of all earlier calls",
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
        "which shows ranks and counts of calls, but not the call in which a rank waits",
    ),
    (
        rb"#bytes\s+#iterations\s+(?:BW peak|t_min)",
        "a result of perftest (ib_write_bw and similar programs)",
        "which measures a link, not a collective",
    ),
    (
        rb"\[BENCHMARK\]\s+hccl\w+\(",
        "a result of hccl_demo (Intel Gaudi)",
        _TELLS_NO_RANKS,
    ),
    (
        rb"COMMS-RES",
        "a result of param's comms benchmark",
        "whose times include waiting for the last rank",
    ),
    (
        rb"Performance of \w+ on \d+ devices",
        "a result of DeepSpeed's communication benchmarks",
        "which rounds sizes and does not name hosts",
    ),
    (
        rb"\"schema\"\s*:\s*\"[\d.]+-chakra|\"workload_graph\"\s*:|\x0a\x06schema",
        "an execution trace (PyTorch's observer, Chakra)",
        _NO_TIMES,
    ),
    (
        rb"NEGOTIATE_(?:ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL)",
        "a timeline of Horovod",
        "which shows one rank's view of named tensors and no kernels",
    ),
    (
        rb"\"cat\"\s*:\s*\"(?:GROUP|COLL|P2P)_API\",\s*\"ph\"",
        "a timeline of NCCL's example profiler plugin",
        "which has no steps and no GPU work other than NCCL's",
    ),
    (
        rb"\"name\"\s*:\s*\"NPKIT_EVENT_",
        "a timeline of NPKit",
        "which shows what happens inside NCCL's kernels, not the job's calls and compute",
    ),
    (
        rb"\"name\"\s*:\s*\"(?:RANK \d+ )?HOST<[^\"]{1,300}>\"",
        "a timeline of unitrace (Intel)",
        _NO_TRACE,
    ),
    (
        rb"\"rocprofiler-sdk-tool\"\s*:",
        "a recording of rocprofv3",
        _NO_TRACE,
    ),
    (
        rb"Count\s+Size\s+Time, us[^\r\n]*\r?\n\s+avg\s+min\s+max",
        "a result of ucc_perftest",
        _TELLS_NO_RANKS,
    ),
    (
        rb"The average bandwidth of \w+ (?:with|over) \d+ ranks",
        "a result of all_reduce_bench.py",
        "which rounds times and does not name hosts",
    ),
    (
        rb"nvbandwidth Version|\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]",
        "a result of a test of copies between GPUs",
        "which measures links, not a collective",
    ),
    (
        rb"(?:\A|\n)nccl_\w*(?:bandwidth_gbs|time_microseconds)\{",
        "a file of NCCL Inspector's metrics for Prometheus",
        "which hold means over many calls (without NCCL_INSPECTOR_PROM_DUMP, NCCL Inspector writes "
        "logs, which commprof report reads)",
    ),
    (
        rb"\"has_payload\": \"[0-9a-f]{32}\"",
        "a log of torch.compile (TORCH_TRACE)",
        "which has no times at which collectives ran",
    ),
    (
        rb"\x80[\x02-\x05](?s:.){0,30}segments(?s:.){1,120}(?:address|device_traces)",
        "a snapshot of torch's memory (torch.cuda.memory)",
        "which shows allocations, not collectives",
    ),
)
#: Tables that may stand in a job's log, in the form of ``_TOOLS``. A table counts only if no other
#: text of the log is recognised.
_TABLES: Final = (
    (
        rb"Self CPU %\s+Self CPU\s+CPU total %",
        "a table of torch.profiler (key_averages)",
        "which has sums over calls (export_chrome_trace writes the trace that commprof report "
        "reads)",
    ),
    (
        rb"\((?:cuda|nvtx|osrt)_\w+_sum\):|(?:\A|\n)Start \(ns\),Duration \(ns\),CorrId",
        "a table of Nsight Systems",
        _NO_TRACE,
    ),
)
_ANY: Final = re.compile(b"|".join(b"(" + pattern + b")" for pattern, _, _ in _TOOLS))
#: Every text that matches a pattern of ``_TOOLS`` has one of these words. The words are searched
#: first, because a word is found much faster than a pattern.
_HINTS: Final = (
    *(b"# OSU ", b"t_avg[usec]", b"MPI Benchmarks", b"t_min[usec]", b"Comm. Op", b"comm op: "),
    *(b"size(B)", b"data_size(Bytes)", b"Initializing MSCCL++", b"Job summary", b"#iterations"),
    *(b"Communicators... (", b"communicators_count", b"[BENCHMARK]", b"COMMS-RES", b"_API"),
    *(b"Performance of ", b"-chakra", b"workload_graph", b"\x06schema", b"NEGOTIATE_", b"HOST<"),
    *(b"NPKIT_EVENT_", b"rocprofiler-sdk-tool", b"Time, us", b"average bandwidth", b"nvbandwidth"),
    *(b"[P2P (", b"nccl_", b"has_payload", b"segments"),
)
_ANY_TABLE: Final = re.compile(b"|".join(b"(" + pattern + b")" for pattern, _, _ in _TABLES))

#: Compressed formats that commprof does not unpack: first bytes, name, and unpacking command.
_COMPRESSED: Final = (
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"\xfd7zXZ\0", "xz", "xz -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x"),
)
#: Programs that write databases of SQLite, by the name of a table.
_DATABASE: Final = b"SQLite format 3\0"
_DATABASES: Final = (
    (b"CUPTI_ACTIVITY_KIND", "an export of Nsight Systems"),
    (b"rocpd_", "a recording of rocprof"),
)
#: Programs whose binary files are recognised by the end of their names.
_NAMES: Final = (
    ((".nsys-rep", ".qdrep"), "a recording of Nsight Systems"),
    ((".ncu-rep",), "a recording of Nsight Compute"),
    ((".xplane.pb",), "a profile of XLA (JAX, TensorFlow)"),
    (
        (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz"),
        "a trace of Perfetto in its binary form",
    ),
)
#: Text of an nccl-tests run. It counts only if no text of ``_TOOLS`` is found.
_STARTED_TEST: Final = re.compile(
    rb"# nThread \d+ nGpus \d+ minBytes|Test (?:NCCL|CUDA|HIP) failure \w+\.(?:cu|cpp)"
)
_STOPPED: Final = b"Watchdog caught collective operation timeout: "
_WATCHDOG: Final = re.compile(
    re.escape(_STOPPED) + rb"(Work\w+)\(([^()\r\n]{1,300}?)(?:, Timeout|\))"
)


def other_tool(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    """Says which program wrote a file and why commprof does not read it; empty if not known.

    Args:
        path: the file.
        most_bytes: number of bytes that are searched.
    """
    by_name = (what for ends, what in _NAMES if path.name.endswith(ends))
    try:
        with open_regular(path) as opened:
            head = opened.read(_CHUNK_BYTES)
            if head.startswith(_DATABASE):
                by_table = (what for table, what in _DATABASES if table in head)
                return f"{next(by_table, 'a database of SQLite')}, {_NO_TRACE}"
            for begin, what, program in _COMPRESSED:
                if head.startswith(begin):
                    return f"compressed by {what}, and must be unpacked first ({program})"
            if what := next(by_name, ""):
                return f"{what}, {_NO_TRACE}"
        return _by_text(path, most_bytes)
    except OSError:
        return ""


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    with open_regular(path) as opened:
        buffered = io.BufferedReader(cast(Any, opened))
        if not is_gzip(buffered.peek(2)):
            yield cast(BinaryIO, buffered)
            return
        size = os.fstat(opened.fileno()).st_size
        unpacked = Unpacked(gzip.GzipFile(fileobj=buffered), size)
        yield cast(BinaryIO, io.BufferedReader(unpacked))


def _by_text(path: Path, most_bytes: int) -> str:
    tail, searched = b"", 0
    started = has_nccl = False
    match = waited = table = None
    with _unpacked(path) as opened:
        while searched < most_bytes and (chunk := opened.read(_CHUNK_BYTES)):
            text = tail + chunk
            if match is None and any(hint in text for hint in _HINTS):
                match = _ANY.search(text)
            if waited is None and _STOPPED in text:
                waited = _WATCHDOG.search(text)
            if match is None:
                started = started or _STARTED_TEST.search(text) is not None
                has_nccl = has_nccl or LOG_LINE.search(text) is not None
                table = table or _ANY_TABLE.search(text)
            tail, searched = chunk[-_OVERLAP_BYTES:], searched + len(chunk)
    if waited and not started:
        work, about = (printable(part.decode(errors="replace")) for part in waited.groups())
        return (
            f"a job's log, in which torch's watchdog stopped {work}({about}): the Flight Recorder "
            "dumps of all ranks show which ranks were waited for"
        )
    if match:
        _, what, why = _TOOLS[(match.lastindex or 1) - 1]
        return f"{what}, {why}"
    if not started and not has_nccl:
        if table is None:
            return ""
        _, what, why = _TABLES[(table.lastindex or 1) - 1]
        return f"{what}, {why}"
    with _unpacked(path) as opened:
        if not started:
            return about_nccl_log(opened, searched)
        failure = first_failure(opened, searched)
    why = f': "{failure}"' if failure else ": it failed or was cut off before its first result"
    return f"the text of an nccl-tests run without any result{why}"
