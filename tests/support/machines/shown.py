from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commprof.commands import homes, load, main, make_parser
from commprof.commands.running.run_arguments import SHORT_DESCRIPTION

ROOT = Path(__file__).parents[3]
_PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "commprof": [sys.executable, "-m", "commprof"],
}
#: PET_STANDALONE makes torchrun use a free port, because other tests may use port 29500.
#: Ray waits longer for its workers, because the machine is shared.
_ENVIRONMENT = {
    **{"PET_STANDALONE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(
    r"(\$ )?(\w+=\S+ )*(python|torchrun|commprof|make|pip|echo|eval|kill|srun|sbatch) "
)
_READS = re.compile(
    r"(python -m )?commprof ((report|trace|compare|audit|fit|predict|chakra|top|launch-files)\b"
    r"|run .*--dry-run)|python -m commprof\.run .*--dry-run"
)
#: ``commprof audit`` returns 1 for findings; ``launch-files`` without options returns 2.
EXIT_CODES = {"commprof audit SCALING.md": 1, "commprof launch-files": 2}
_EXAMPLE = re.compile(r"^  ((?:eval|torchrun|commprof|sbatch) .*?)(?:\s{2,}.*)?$", re.MULTILINE)
_PLACEHOLDERS = {
    **{" A B": " BEFORE AFTER", "-- COMMAND": "-- true", " OP": " all_reduce"},
    **{" SOURCE...": " bench.json", " FILE": " SCALING.md", " DUMPS": " dumps"},
}


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0].strip()

    def lines(self) -> list[str]:
        joined = re.sub(r"\\\n\s*", "", self.text)
        lines = (re.sub(r"(^|\s+)# .*", "", line).strip() for line in joined.splitlines())
        return [line.removeprefix("$ ") for line in lines if line]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> Iterator[Block]:
    for page in pages():
        for match in _FENCE.finditer(page.read_text()):
            yield Block(str(page.relative_to(ROOT)), match[1], match[2])


def helps() -> Iterator[Block]:
    texts = {"": make_parser().description or "", "run --help": SHORT_DESCRIPTION}
    texts |= {name: load(name).description for name in homes()}
    for name, text in texts.items():
        for line in _EXAMPLE.findall(re.sub(r"\\\n\s*", "", text)):
            for placeholder, word in _PLACEHOLDERS.items():
                line = re.sub(rf"{re.escape(placeholder)}(?=$| )", word, line)
            yield Block(f"commprof {name}".strip(), "", f"{line}\n")


def is_typed(block: Block) -> bool:
    return block.language in ("", "bash", "console", "sh") and bool(_TYPED.match(block.text))


def shown_lines() -> list[str]:
    typed = [block for block in (*blocks(), *helps()) if is_typed(block)]
    return list(dict.fromkeys(line for block in typed for line in block.lines()))


def only_reads(line: str) -> bool:
    return bool(_READS.match(line))


def read_in_scene(line: str, here: Path) -> bool:
    given = re.sub(r" > \S+$", "", line)
    given = re.sub(r"/shared/(\w+)", lambda match: shlex.quote(f"{here}/{match[1]}"), given)
    given = re.sub(r"(?<= )-o (?=\S)", "--force -o ", given)
    given = re.sub(r"(top (?:RUN|LOGS))$", r"\1 --once", given)  # otherwise top does not end
    words = shlex.split(re.sub(r"^(python -m )?commprof[. ]", "", given))
    try:
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    return code == EXIT_CODES.get(line, 0)


def run_shown(line: str, directory: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(line)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*_PROGRAMS.get(program, [program]), *arguments],
        cwd=directory,
        env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
