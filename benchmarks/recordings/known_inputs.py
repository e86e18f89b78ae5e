"""Runs commprof on inputs whose right figures are known, and compares the figures.

    PYTHONPATH=. python benchmarks/recordings/known_inputs.py ../shared/data/small
    PYTHONPATH=. python benchmarks/recordings/known_inputs.py FOLDER --jobs --only torch

The folder holds small recordings and logs, and scripts that train, which run only with ``--jobs``.
Each input is an entry of ``KNOWN``. The verdict on an input is "missing" if the folder lacks it,
and "later" if commprof's answer is known to be wrong. The exit code is 1 if any other answer is
wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from benchmarks.judging.demands import Demand, judged, of_all

ROOT = Path(__file__).parents[2]
_LONGEST_S = 400
#: Width of the columns for commprof's answer and for the right answer.
_WIDE = 60


@dataclass(frozen=True)
class Known:
    """An input, a command that reads it, and the right answer."""

    #: Path in the folder.
    path: str
    #: Shell command. {commprof} and {python} stand for the programs, {input} for the path, and
    #: {out} for an empty folder. Its output and errors are read as one line.
    command: str
    #: The right answer, in words.
    right: str
    #: Pattern of the right answer, or a function that accepts it.
    shown: str | Callable[[str], bool]
    #: Pattern that commprof's output must not contain; empty if there is none.
    never: str = ""
    #: Pattern of the text that is printed as commprof's answer; empty if it is ``shown``.
    answer: str = ""
    #: True if the command trains.
    job: bool = False
    #: True if commprof's answer is known to be wrong.
    later: bool = False


def at_path(path: str, right: object) -> Callable[[str], bool]:
    """Returns a function that accepts JSON with the right value at a path.

    An example of a path is ``runs.0.num_processes``.
    """

    def accepted(text: str) -> bool:
        try:
            value = json.loads(text)
            for key in path.split("."):
                value = value[int(key)] if isinstance(value, list) else value[key]
        except (ValueError, LookupError, TypeError):
            return False
        return bool(value == right)

    return accepted


def pairs_agree(text: str) -> bool:
    """True if the two exposed shares of each pair differ by at most 1 % of the step."""
    shares = [
        0.0 if "none" in share else float(share.rpartition(" ")[2])
        for share in re.findall(r"Exposed communication: (none|[\d.]+ ms, [\d.]+)", text)
    ]
    pairs = list(zip(shares[::2], shares[1::2], strict=False))
    return bool(pairs) and all(abs(first - second) <= 1 for first, second in pairs)


REPORT = "{commprof} report {input}"
FIT = "{commprof} fit {input} --output {out}/profile.json"
FITTED = r"all_reduce nccl [\d. e+-]+ [\d.e+-]+ \[[^]]*\] [\d.]+"
RUN = "cd {out} && {commprof} run --nproc 2 --output r"
NO_CHANGE = "needs no change"


def fitted(path: str, ranks: int, rate: str, alpha: str = r"[\d.]+") -> Known:
    """Returns the entry of an all_reduce log.

    ``alpha`` is a pattern of the fitted latency in us. ``rate`` is a pattern of the fitted rate in
    GB/s.
    """
    return Known(
        path,
        FIT,
        f"all_reduce, {ranks} ranks, {rate} GB/s",
        rf"all_reduce nccl {ranks} \S+ {alpha} \[[^]]*\] {rate} \[",
        answer=FITTED,
    )


def late_phase(ranks: int, late_ms: float) -> Known:
    """Returns the entry of a simulated run in which one rank is late in forward."""
    make = f"{{python}} {{input}} {{out}}/run {ranks} 40 --late-ms {late_ms:g} > {{out}}/made"
    return Known(
        "late_phase/make.py",
        make + " && {commprof} report {out}/run",
        f"{ranks} ranks, {late_ms:g} ms: rank {ranks // 3}, forward",
        rf"rank {ranks // 3} (?:delays the step: it )?falls behind in the forward phase",
        never="backward phase",
        answer=r"rank \d+ [^.]*?phase",
    )


KNOWN = (
    *(late_phase(ranks, late_ms) for ranks in (4, 8, 32) for late_ms in (1, 4, 30)),
    Known(
        "f01_copy_engine",
        REPORT + " --format json",
        "24 collectives, 2 per step of 50 ms: three kernels are one collective",
        lambda text: (
            at_path("runs.0.aggregated_metrics.device_collectives", 24)(text)
            and at_path("runs.0.aggregated_metrics.step_median_ms", 50.0)(text)
        ),
        answer=r'"device_collectives": \d+',
    ),
    Known(
        "f02_busy_not_idle",
        REPORT,
        "compute 96 % (phase not known), transfer 2 %, idle 2 %",
        r"compute, phase not known 48 ms 96\.0% T transfer 1 ms 2\.0% \. idle 0\.99 ms 2\.0%",
        answer=r"bound by [^.]*\.\d%",
    ),
    Known(
        "f03_cpu_only_nccl",
        REPORT,
        "times not known: no kernel was recorded",
        "Exposed communication: not known",
        never=f"{NO_CHANGE}|Exposed communication: none",
        answer=r"Exposed communication: [^!.]*",
    ),
    Known(
        "f04_hccl",
        REPORT,
        "30 of 50 ms are exposed in all_to_all",
        r"Exposed communication: (?:29\.[2-9]|30(?:\.[01])?) ms, (?:5[89]|60)\.\d% of the step",
        never=f"{NO_CHANGE}|Exposed communication: none",
        answer=r"Exposed communication: [^!]*?%",
    ),
    Known(
        "f05_gloo_no_operator",
        REPORT,
        "not known: no operator of the training thread was recorded",
        "Exposed communication: not known: no operator of the training thread",
        never=r"bound by communication",
        answer=r"What bounds it [^:]*|bound by [^.]*\.\d%",
    ),
    fitted("f06_header_after_64k_all_reduce.log", 8, "35"),
    fitted("f06_many_ranks_all_reduce.log", 1024, "40"),
    fitted("f07_tag_in_row_all_reduce.log", 8, "35"),
    fitted("f08_one_rank_line_lost_all_reduce.log", 8, "35"),
    Known(
        "f09_one_kernel_lost",
        REPORT + " --all",
        "no incident",
        r"Exposed communication",
        never="not the same on all ranks|First see what went wrong",
        answer=r"[^.!]*not the same on all ranks|Next: [^.]*",
    ),
    fitted("f10_rccl_Z_all_reduce.csv", 8, "35"),
    fitted("f10_rccl_Z_all_reduce.json", 8, "35"),
    Known(
        "f11_range_without_kernel",
        REPORT,
        "six ranges of c10d, no kernels of communication",
        "c10d called collectives, but no kernel of communication was recorded",
        never="no range of c10d",
        answer=r"What bounds it [^.]*|no range of c10d",
    ),
    # All logs in nccl/ have a latency of 20 us, the time of 2 (n - 1) steps on n ranks. Their algbw
    # of 100 GB/s is a busbw of 175 GB/s at 8 ranks, and of 150 GB/s at 4 ranks.
    fitted("nccl/rccl_hipevt_all_reduce.log", 8, "175", r"1\.43"),
    fitted("nccl/rccl_nohipevt_all_reduce.log", 8, "175", r"1\.43"),
    fitted("nccl/rccl_O0_in_place_only.log", 8, "175", r"1\.43"),
    fitted("nccl/split_or.log", 8, "175", r"1\.43"),
    fitted("nccl/split_mod2.log", 4, "150", r"3\.33"),
    fitted("nccl/split_mod2.json", 4, "150", r"3\.33"),
    fitted("nccl/cycles.log", 8, "175", r"1\.43"),
    fitted("nccl/periter_0.log", 8, "175", r"1\.43"),
    fitted("nccl/periter_1.log", 8, "175", r"1\.43"),
    fitted("nccl/skip.json", 8, "175", r"1\.43"),
    Known(
        "nccl/rccl_O0_in_place_only.log",
        "cd {folder}/nccl && {commprof} compare rccl_nohipevt_all_reduce.log {input}",
        "10 rows in place, none out of place",
        "0 slower, 0 faster, 10 same",
        never="out-of-place float",
        answer=r"B against A: [^.]*",
    ),
    Known(
        "nccl/cycles.log",
        "{commprof} compare {input} {input}",
        "5 rounds are too few to compare, 8 are enough",
        r"With 5 rounds and 20 rows .* -N 8 or more",
        answer=r"With [^;]*rows",
    ),
    Known(
        "nccl/alltoallv.log",
        "{commprof} compare {input} {input}",
        "20 rows of all_to_all, 8 ranks, unequal parts",
        r"all_to_all 8 .*alltoallv sends unequal parts.* 20 same",
        answer=r"B against A: [^.]*",
    ),
    Known(
        "t11_watchdog_mismatch.py",
        RUN + " --watchdog 3 {input}",
        "rank 1 issued a barrier, rank 0 an all_gather",
        r"rank 0: all_gather [^;]*; rank 1: barrier",
        never="the network or backend does not complete it",
        answer=r"HANG 1: [^.]*",
        job=True,
    ),
    Known(
        "t04_ddp_every_pass.py",
        RUN + " {input}",
        "all four passes of a step exchange gradients: use no_sync() in three",
        r"no_sync",
        answer=r"Next: [^.]*",
        job=True,
        later=True,
    ),
    Known(
        "t10_scalar_metrics.py",
        RUN + " {input}",
        "20 scalar calls per step outside of backward: combine the calls",
        r"t10_scalar_metrics\.py:\d+",
        never="larger buckets|bucket-cap",
        answer=r"Next: [^.]*",
        job=True,
        later=True,
    ),
    Known(
        "t14_first_pass_synced.py",
        RUN + " {input}",
        "the first pass is synchronised instead of the last",
        r"first (?:of|pass)[^.]*last",
        answer=r"Next: [^.]*",
        job=True,
        later=True,
    ),
    Known(
        "libs/f4_no_exchange.py",
        RUN + " {input}",
        "two ranks train alone, without exchanging gradients",
        r"(?i)no exchange|exchange[sd]? (?:no|nothing)|train(?:s|ed)? (?:alone|apart|separate)",
        never=NO_CHANGE,
        answer=r"Next: [^.]*|At 2 ranks[^.]*",
        job=True,
    ),
    Known(
        "libs/f3_no_ddp.py",
        RUN + " {input}",
        "no trial: no DDP model exchanges gradients",
        r"no DDP model exchanged gradients|commprof's trials change only DDP's own",
        never="--trial|--hook",
        answer=r"Next: .*?type|Next: [^.]*\.[^.]*",
        job=True,
    ),
    Known(
        "libs/f6_mpirun.sh",
        "PY={python} bash {input}",
        "one table for the two ranks that mpirun started",
        r"2 ranks:",
        never=r"there is only one rank|is not empty|1 rank:",
        answer=r"there is only one rank|is not empty|2 ranks: [^.]*",
        job=True,
    ),
    Known(
        "libs/f8_tiny_calls.py",
        RUN + " {input}",
        "five all_gathers of 8 B per step: compression is not advised",
        r"5 all_gather calls per step \(8 bytes",
        never="--trial|--hook|larger buckets",
        answer=r"Next: [^.]*",
        job=True,
    ),
    Known(
        "libs/f9_ignored_parameters.py",
        RUN + " --hook fp16 {input}",
        "training continues under the hook",
        r"rank 0 trained.*rank 1 trained|rank 1 trained.*rank 0 trained",
        never="CommprofError",
        answer=r"rank \d trained|CommprofError[^.]*",
        job=True,
    ),
    Known(
        "libs/f10_check_sync_ignored.py",
        RUN + " --check-sync 10 {input}",
        "DDP's parameters are equal",
        r"rank \d trained",
        never="not bit-identical",
        answer=r"not bit-identical|rank \d trained",
        job=True,
    ),
    Known(
        "libs/f1_group_without_init.py",
        "export STORE={out}/store; " + RUN + " {input}",
        "the job ended normally; one all_reduce of 2.11 MB per step",
        r"all_reduce of 2\.11 MB",
        never="did not run to its end|no trace|records nothing",
        answer=r"[^.]*did not run to its end|At 2 ranks[^.]*",
        job=True,
    ),
    Known(
        "libs/f5_launcher_argument.sh",
        "PY={python} bash {input}; echo done",
        "records under --local-rank=N",
        "done",
        never="no script '--local-rank",
        answer=r"no script[^;]*|done",
        job=True,
    ),
    Known(
        "libs/f7_long_path.sh",
        "PY={python} bash {input}",
        "the header has the script's name",
        r"Recorded by commprof: \S*train_my_model\.py",
        answer=r"Recorded by commprof:.*",
        job=True,
    ),
    Known(
        "torch/F1.sh",
        "V={environment} bash {input}",
        "on an idle host: exposed share within 1 % of commprof's recording",
        pairs_agree,
        answer=r"Exposed communication: [^;!]*",
        job=True,
    ),
    Known(
        "torch/F2.sh",
        "V={environment} bash {input}; echo done",
        "no incident",
        "done",
        never="is not the same on all ranks",
        answer=r"[^.]*not the same[^.]*|done",
        job=True,
    ),
    Known(
        "torch/F8.sh",
        "V={environment} bash {input}",
        "groups and sizes not known, nobody accused",
        "At 4 ranks",
        never=r"_tp\b(?:(?!==).)*of all waiting",
        answer=r"Waited for: [^!]{1,60}",
        job=True,
    ),
    Known(
        "torch/F12.sh",
        "V={environment} bash {input}",
        "rank 1 is late, both with DETAIL and with INFO",
        r"== DETAIL.*Waited for: rank 1",
        answer=r"== DETAIL.*",
        job=True,
    ),
    Known(
        "torch/F11.sh",
        "V={environment} V215={newer} bash {input}",
        "20 to 36 % exposed (torch 2.15)",
        "Exposed communication",
        never="Exposed communication: none",
        answer=r"Exposed communication: [^:]*",
        job=True,
    ),
    Known(
        "torch/F7.sh",
        "V={environment} V215={newer} bash {input}",
        "no rank is blamed: no call is known to be pending (torch 2.15)",
        r"\S",
        never="hangs because of rank|is stuck",
        answer=r"The job hangs[^.]*|All ranks[^.]*",
        job=True,
    ),
)


@dataclass(frozen=True)
class Answer:
    """Commprof's answer to an input, and the verdict on the answer."""

    said: str
    #: "ok", "NOT ok", "later" or "missing".
    verdict: str


def asked(known: Known, folder: Path, newer: str) -> Answer:
    """Runs one command and judges its answer."""
    path = folder / known.path
    if not path.exists():
        return Answer("", "missing")
    # ranks may outlive the command
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as out:
        command = known.command.format(
            commprof=f"{shlex.quote(sys.executable)} -m commprof",
            python=shlex.quote(sys.executable),
            environment=shlex.quote(sys.prefix),
            newer=shlex.quote(newer),
            input=shlex.quote(str(path)),
            folder=shlex.quote(str(folder)),
            out=shlex.quote(out),
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                ["bash", "-c", command],
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                env={**environment, "XDG_CONFIG_HOME": out},
                check=False,
            )
            text = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            text = f"no answer within {_LONGEST_S} s"
    return judge(known, text)


def judge(known: Known, text: str) -> Answer:
    """Judges the output of the command of one input."""
    line = " ".join(text.split())
    right = known.shown(line) if callable(known.shown) else re.search(known.shown, line)
    wrong = re.search(known.never, line) if known.never else None
    pattern = known.answer or (known.shown if isinstance(known.shown, str) else ".*")
    shown = wrong or re.search(pattern, line)
    said = (shown[0] if shown else line)[:_WIDE]
    if right and not wrong:
        return Answer(said, "ok")
    return Answer(said, "later" if known.later else "NOT ok")


def demands(answers: list[Answer]) -> list[Demand]:
    """Checks that all answers are right, except those marked "later"."""
    counted = [answer for answer in answers if answer.verdict in ("ok", "NOT ok")]
    right = sum(answer.verdict == "ok" for answer in counted)
    return [of_all("inputs with the right answer", right, len(counted), max(1, len(counted)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", action="store_true", help="also run the scripts that train")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only paths that match")
    parser.add_argument(
        "--newer", default=sys.prefix, metavar="ENV", help="environment with torch 2.15"
    )
    args = parser.parse_args()
    folder = args.folder.resolve()
    chosen = [
        known
        for known in KNOWN
        if (args.jobs or not known.job) and re.search(args.only, known.path)
    ]
    answers = []
    for number, known in enumerate(chosen, 1):
        answers.append(asked(known, folder, args.newer))
        print(f"{number}/{len(chosen)} {known.path}: {answers[-1].verdict}", file=sys.stderr)
    rows = [
        (known.path, answer.said, known.right, answer.verdict)
        for known, answer in zip(chosen, answers, strict=True)
    ]
    heads = ("input", "commprof says", "right", "verdict")
    print(tabulate(rows, heads, maxcolwidths=[34, _WIDE, _WIDE, None]))
    return judged(demands(answers))


if __name__ == "__main__":
    sys.exit(main())
