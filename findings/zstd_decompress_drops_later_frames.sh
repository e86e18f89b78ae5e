#!/bin/bash
# Guess: a compressed file that was appended to, or put together with cat, reads whole, as gzip's
# does in Python.
# Truth: of python-zstandard's ways to decompress, decompress(), decompressobj() and read_to_iter()
# give the first frame alone and say nothing of the rest; stream_reader(), open() and copy_stream()
# give all. lz4.frame.decompress() gives the first alone as well, lz4.frame.open() all. pandas,
# polars, duckdb and pyarrow read all frames. A trace that ranks append to, or that pzstd wrote in
# pieces, is so read in part.
# Seen with zstandard 0.25.0, lz4 4.4.5, pandas 3.1.1, polars 2.1.0, duckdb 2.0.1, pyarrow 26.0.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile zstandard==0.25.0 lz4==4.4.5 pandas==3.1.1 numpy==2.4.6 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
fi
cat > "$work/job.py" <<'EOF'
import gzip
import io
from pathlib import Path

import duckdb
import lz4.frame
import pandas
import polars
import pyarrow
import pyarrow.json
import zstandard


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


FIRST, LATER = b'{"step":0}\n{"step":1}\n', b'{"step":2}\n{"step":3}\n'
ALL = FIRST + LATER
compress = zstandard.ZstdCompressor().compress
frames = compress(FIRST) + compress(LATER)
Path("steps.json.zst").write_bytes(frames)
reader = zstandard.ZstdDecompressor()
whole = io.BytesIO()
reader.copy_stream(io.BytesIO(frames), whole)


def part(data):
    return {ALL: "all", FIRST: "the first frame"}.get(data, data)


expect("gzip.decompress", part(gzip.decompress(gzip.compress(FIRST) + gzip.compress(LATER))), "all")
expect("zstandard, decompress", part(reader.decompress(frames)), "the first frame")
expect("zstandard, decompressobj", part(reader.decompressobj().decompress(frames)), "the first frame")
expect("zstandard, read_to_iter", part(b"".join(reader.read_to_iter(frames))), "the first frame")
expect("zstandard, copy_stream", part(whole.getvalue()), "all")
expect("zstandard, stream_reader", part(reader.stream_reader(io.BytesIO(frames)).read()), "all")
expect("zstandard, open", part(zstandard.open("steps.json.zst", "rb").read()), "all")
frames = lz4.frame.compress(FIRST) + lz4.frame.compress(LATER)
Path("steps.json.lz4").write_bytes(frames)
expect("lz4.frame.decompress", part(lz4.frame.decompress(frames)), "the first frame")
expect("lz4.frame.open", part(lz4.frame.open("steps.json.lz4").read()), "all")
expect("pandas", len(pandas.read_json("steps.json.zst", lines=True)), 4)
expect("polars", polars.read_ndjson("steps.json.zst").height, 4)
expect("duckdb", duckdb.sql("select count(*) from 'steps.json.zst'").fetchall(), [(4,)])
opened = pyarrow.CompressedInputStream(pyarrow.OSFile("steps.json.zst"), "zstd")
expect("pyarrow", pyarrow.json.read_json(opened).num_rows, 4)
EOF
cd "$work"
"$python" job.py
