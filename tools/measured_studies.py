"""Studies that docs/measured.md shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import (
    faults,
    microbench_aa,
    microbench_floor,
    multi_node,
    shared_memory,
    strategies,
    torch_versions,
)
from benchmarks.attribution import (
    blame,
    busy_machine,
    device_parts,
    exact_schedules,
    gain_error,
    hangs,
    known_schedules,
    late_rank,
    nccl_links,
    two_instruments,
)
from benchmarks.causes import catalogue
from benchmarks.judging import compression_demands, trial_truth_demands
from benchmarks.judging.demands import Demand, of_all
from benchmarks.judging.results_file import CONTEXT, read_json, read_parts, read_rows
from benchmarks.own_cost import (
    calibration,
    calls,
    instructions,
    large_trace,
    live_overhead,
    long_day,
    long_hour,
    long_run,
    nccl_plugin,
    nccl_plugin_harm,
    overhead,
)
from benchmarks.predictions import predict_error, predict_intervals, predict_sharded
from benchmarks.recordings import inspector as inspector_logs
from benchmarks.recordings import speed as recordings_speed
from benchmarks.scale import live, report_cost
from tools.measured_tables import instruction_counts, step_ratios, strategy_rows

Judge = Callable[[Path], Sequence[Demand]]


@dataclass(frozen=True)
class Study:
    """The figures that one command measures, and the demands on these figures."""

    title: str
    #: File in benchmarks/results.
    file: str
    #: Command that writes the file, after `PYTHONPATH=. python benchmarks/`.
    command: str
    #: Demands in words, shown until the figures have been measured.
    asked: tuple[str, ...]
    #: Returns the demands on a file's figures, or none if the file lacks this study's figures.
    judge: Judge
    #: Part of the file that this study uses; empty for the whole file.
    part: str = ""
    #: Returns further tables, in Markdown, which the page shows below the group's table.
    beside: Callable[[Path], str] | None = None


def torch_ddp_tests(path: Path) -> list[Demand]:
    """Returns the demands that PyTorch's tests have the same outcome with and without commprof."""
    found = []
    for name, counts in read_json(path)["modules"].items():
        same = counts["run"] - len(counts["different"])
        passed = f"{counts['passed_without']} pass without, {counts['passed_with']} with"
        what = f"{name}, tests with the same outcome with and without commprof ({passed})"
        found.append(of_all(what, same, counts["run"], counts["listed"]))
    return found


def parts_of(part: str, judge: Callable[[dict[str, Any]], list[Demand]]) -> Judge:
    """Returns the judge of one part of a file with several parts."""

    def of_file(path: Path) -> list[Demand]:
        figures = read_parts(path).get(part)
        return judge(figures) if figures else []

    return of_file


def parts_judged_by(judge: Callable[[dict[str, dict[str, Any]]], list[Demand]]) -> Judge:
    """Returns the judge of a file whose parts are judged together."""
    return lambda path: judge(read_parts(path))


def rows_of(judge: Callable[[list[dict[str, Any]]], list[Demand]]) -> Judge:
    """Returns the judge of a file of JSON lines."""
    return lambda path: judge(read_rows(path))


def object_of(judge: Callable[[dict[str, Any]], list[Demand]]) -> Judge:
    """Returns the judge of a file with one JSON object."""

    def of_file(path: Path) -> list[Demand]:
        return judge({key: value for key, value in read_json(path).items() if key != CONTEXT})

    return of_file


def predictions(of_transformer: bool) -> Judge:
    """Returns the judge of a file's predictions of the transformer, or of its other predictions."""

    def of_file(path: Path) -> list[Demand]:
        rows = [
            row for row in read_rows(path) if predict_error.is_transformer(row) == of_transformer
        ]
        return predict_error.demands(rows) if rows else []

    return of_file


def sharded_predictions(study: str) -> Callable[[Path], list[Demand]]:
    """Returns a judge of the rows that belong to one study of predict_sharded.py."""

    def of_file(path: Path) -> list[Demand]:
        rows = [row for row in read_rows(path) if predict_sharded.point_of(row).study == study]
        return predict_sharded.demands(rows, study) if rows else []

    return of_file


def shared(part: str, title: str, *asked: str) -> Study:
    """Returns the study of one part of shared_memory.py."""
    command = f"shared_memory.py {part} --json benchmarks/results/shared_memory.json"
    judge = parts_of(part, shared_memory.DEMANDS[part])
    return Study(title, "shared_memory.json", command, asked, judge, part)


def compression(part: str, title: str, *asked: str) -> Study:
    """Returns the study of one part of compression.py."""
    command = f"compression.py {part} --json benchmarks/results/compression.json"
    judge = parts_of(part, compression_demands.DEMANDS[part])
    return Study(title, "compression.json", command, asked, judge, part)


RESULTS = "benchmarks/results"
PREDICTIONS = f"{RESULTS}/predictions"

GROUPS: dict[str, tuple[Study, ...]] = {
    "Attribution": (
        Study(
            "Small jobs, each with a mistake of the catalogue, and the same jobs without mistakes",
            "causes.jsonl",
            f"causes/catalogue.py --results {RESULTS}/causes.jsonl",
            (
                "the first screen names the cause in 92.5 % of the runs with a mistake",
                "no cause is named in 97.5 % of the runs without a mistake",
                "mean difference between predicted and measured gain, beyond the noise: at most "
                "2 % of the step",
                "mean noise of the measured gain: at most 2 % of the step",
            ),
            rows_of(catalogue.demands),
        ),
        Study(
            "Exposed time minus the lead over the last rank, in 20 simulated schedules",
            "known_schedules.jsonl",
            f"attribution/known_schedules.py --results {RESULTS}/known_schedules.jsonl",
            ("median error at most 1 % of the step", "largest error at most 3 %"),
            rows_of(known_schedules.demands),
        ),
        Study(
            "Jobs that commprof and torch.profiler recorded at the same time, on gloo",
            "two_instruments.jsonl",
            f"attribution/two_instruments.py --results {RESULTS}/two_instruments.jsonl",
            (
                "both recordings have the same collectives, with equal or unknown groups and sizes",
                "exposed times differ by at most 1 % of the step",
            ),
            rows_of(two_instruments.demands),
        ),
        Study(
            "50 seeded runs with a late rank, and 50 runs without a late rank",
            "late_rank.jsonl",
            f"attribution/late_rank.py --results {RESULTS}/late_rank.jsonl",
            (
                "the late rank named in 50 of 50 runs",
                "its phase named in 48 of 50",
                "no rank named in 48 of 50 runs without a late rank",
            ),
            rows_of(late_rank.demands),
        ),
        Study(
            "Late processes in NCCL Inspector's logs of simulated jobs",
            "inspector.jsonl",
            f"recordings/inspector.py truth --first-seed 8000 --results {RESULTS}/inspector.jsonl",
            (
                "late processes named in 100 of 100 jobs, no process in 100 of 100 clean jobs",
                "wait and transfer differ from the truth by at most 1 % and a microsecond per call",
            ),
            rows_of(inspector_logs.demands),
            beside=lambda path: inspector_logs.beside_truth(read_rows(path)),
        ),
        Study(
            "Reading NCCL Inspector's logs of 2,048 ranks",
            "inspector_speed.jsonl",
            f"recordings/inspector.py speed --results {RESULTS}/inspector_speed.jsonl",
            (
                "at least 156,000 records per second and core, also if 10 or 30 % of them are lost",
                "2 cores read 37.5 million records in 120 s, with at most 2 GB of memory",
            ),
            rows_of(inspector_logs.speed_demands),
            beside=lambda path: inspector_logs.speed_table(read_rows(path)),
        ),
        Study(
            "Late ranks in always-on mode between simulated hosts",
            "live.jsonl",
            f"scale/live.py -o {RESULTS}/live.jsonl",
            (
                "the late rank of 4,096 is named within 10 s, also with a host killed or frozen",
                "each host's process has at most 64 MiB of memory",
            ),
            rows_of(live.demands),
        ),
        Study(
            "Reports of many ranks and of long runs, including Python's start",
            "report_cost.json",
            f"scale/report_cost.py --results {RESULTS}/report_cost.json",
            (
                "report of 1,024 ranks with 600 collectives: at most 3 s of CPU time, 250 MB",
                "report of 1,024 ranks with 100 steps of 25 buckets: at most 12 s, 400 MB",
                "report of 8 ranks: at most 1.5 s, 200 MB with 75,000 collectives; at most 25 s, "
                "500 MB with 1,250,000 collectives",
                "compare of two runs of 512 ranks: at most 8 s, 400 MB; fit of 1,024 ranks: at "
                "most 3 s, 300 MB",
                "HTML page of 256 ranks: at most 1.2 s",
                "CPU time per collective grows by a factor of at most 2 from 8 to 4,096 ranks",
            ),
            parts_of(report_cost.PART, report_cost.demands),
            part=report_cost.PART,
        ),
        Study(
            "Reports of recordings of many ranks, including Python's start",
            "recordings_speed.json",
            f"recordings/speed.py --results {RESULTS}/recordings_speed.json",
            (
                "1,024 torch.profiler traces of 100 all-reduces: at most 4 s of CPU time, 300 MB",
                "256 torch.profiler traces of 5 MB: at most 20 s, 250 MB",
                "1,024 Flight Recorder dumps of 400 entries: at most 4 s, 300 MB",
                "a torch.profiler trace of 25 MB: at most 0.6 s",
                "the cost of a rank's dump does not grow with the number of ranks",
            ),
            parts_of(recordings_speed.PART, recordings_speed.demands),
            part=recordings_speed.PART,
        ),
        Study(
            "Late ranks among 2 to 1,024 ranks, in schedules with known waits",
            "exact_schedules.jsonl.gz",
            f"attribution/exact_schedules.py --results {RESULTS}/exact_schedules.jsonl.gz",
            (
                "the late rank named in 500 of 500 schedules, and its phase in 495",
                "no rank named in 198 of 200 schedules without a late rank",
                "no wrong rank named in 49 of 50 schedules in which two ranks are late in turn",
                "error of a rank's cost, wait and transfer at most 1 % of the step",
            ),
            rows_of(exact_schedules.demands),
        ),
        Study(
            "Parts of the GPUs' time in public recordings, beside the figures of other tools",
            "device_parts.json",
            "attribution/device_parts.py FOLDER --others PYTHON "
            f"--results {RESULTS}/device_parts.json",
            (
                "each part differs from the other tool's figure by at most 0.1 % of the time, "
                "under the rules of either tool",
            ),
            object_of(device_parts.demands),
            beside=device_parts.beside,
        ),
        Study(
            "Origin of the waiting in 60 real jobs, each with one known cause",
            "blame.jsonl",
            f"attribution/blame.py --results {RESULTS}/blame.jsonl",
            (
                "the right rank named in 60 of 60 jobs",
                "the right cause named in 56 of 60",
                "in each job the costs of all ranks add up to all waiting",
            ),
            rows_of(blame.demands),
        ),
        Study(
            "Predicted gain of mending the late rank, in 50 jobs",
            "gain_error.jsonl",
            f"attribution/gain_error.py --rounds 2 --results {RESULTS}/gain_error.jsonl",
            ("mean error at most 1 % of the step", "largest error at most 3 %"),
            rows_of(gain_error.demands),
        ),
        Study(
            "Clean runs and pairs of equal runs of 2 and 4 ranks, next to two busy processes",
            "busy_machine.jsonl",
            f"attribution/busy_machine.py --results {RESULTS}/busy_machine.jsonl",
            (
                "no rank named in 38 of 40 clean runs",
                "38 of 40 pairs of equal runs compare as equal, in the step and in each part",
            ),
            rows_of(busy_machine.demands),
        ),
        Study(
            "Cost of recording for a step; processes with and without commprof take turns",
            "overhead_turns.json",
            f"own_cost/overhead.py --minutes 60 --json {RESULTS}/overhead_turns.json",
            (
                "CPU time with / without commprof: at most 1.002 in always-on mode, 1.005 in full "
                "mode",
                "wall time with / without commprof: upper end of the interval at most 1.005 in "
                "always-on mode, 1.01 in full mode",
                "in every row, less CPU time and wall time than with torch.profiler",
            ),
            object_of(overhead.demands),
            beside=step_ratios,
        ),
        Study(
            "Instructions of the training thread in a step, counted by valgrind",
            "overhead_instructions.json",
            f"own_cost/instructions.py --json {RESULTS}/overhead_instructions.json",
            (
                "instructions with / without commprof: at most 1.002 in always-on mode, 1.005 in "
                "full mode",
            ),
            object_of(instructions.demands),
            beside=instruction_counts,
        ),
        Study(
            "95 % intervals of the cost of recording, for runs that do not differ (A/A blocks)",
            "overhead.json",
            f"own_cost/calibration.py --json {RESULTS}/overhead.json",
            ("in 93 to 97 % of 200 A/A blocks, the 95 % interval contains the true ratio, 1",),
            object_of(calibration.demands),
        ),
        Study(
            "Cost of recording for a collective",
            "overhead.json",
            f"own_cost/calls.py --json {RESULTS}/overhead.json",
            ("at most 1 us on the fake backend",),
            object_of(calls.demands),
        ),
        Study(
            "NCCL's transfers and slow links, in simulated rings of 64 ranks",
            "nccl_links.jsonl",
            f"attribution/nccl_links.py --results {RESULTS}/nccl_links.jsonl",
            (
                "each part of a transfer differs from the simulated part by at most 1 %",
                "the slow link named in 20 of 20 rings",
            ),
            rows_of(nccl_links.demands),
        ),
        Study(
            "Cost of NCCL's profiler plugin for a collective",
            "nccl_plugin.json",
            f"own_cost/nccl_plugin.py --json {RESULTS}/nccl_plugin.json",
            (
                "at most 300 ns of the calling thread",
                "at most 100 ns more if all events are passed on to another plugin",
            ),
            object_of(nccl_plugin.demands),
        ),
        Study(
            "What could harm a job with NCCL's profiler plugin",
            "nccl_plugin_harm.json",
            f"own_cost/nccl_plugin_harm.py --json {RESULTS}/nccl_plugin_harm.json",
            (
                "no crash in 1,000 random orders of calls, no lost collective in 200 kills",
                "100 million events in bounded memory",
            ),
            object_of(nccl_plugin_harm.demands),
        ),
        Study(
            "A long run in always-on mode",
            "long_run.json",
            f"own_cost/long_run.py --json {RESULTS}/long_run.json",
            ("memory does not grow in a million collectives; summary below 1 MB",),
            object_of(long_run.demands),
        ),
        Study(
            "The steps of a day in always-on mode, run within minutes",
            "long_day.json",
            f"own_cost/long_day.py --json {RESULTS}/long_day.json",
            (
                "a million steps, with a full disk and a clock that is set back: at most 1 record "
                "in 1,000 steps is lost, and memory does not grow",
            ),
            object_of(long_day.demands),
        ),
        Study(
            "45 minutes of always-on mode with 64 ranks on one host",
            "long_hour.json",
            f"own_cost/long_hour.py --json {RESULTS}/long_hour.json",
            ("64 ranks and a monitor for 45 minutes: memory and files do not grow",),
            object_of(long_hour.demands),
        ),
        Study(
            "The report of a run of 20 GB",
            "large_trace.json",
            f"own_cost/large_trace.py --json {RESULTS}/large_trace.json",
            ("the report needs less than 1 GB of memory, and its figures equal the steps'",),
            object_of(large_trace.demands),
        ),
    ),
    "Compressors": (
        compression(
            "kernels",
            "Kernels on one thread",
            "exact top-K 1 %: at least 50x as fast as torch.topk at 1 to 100 MB",
            "exact top-K 1 %: at most 2.0x the time of one read of the buffer at 25 MB, 1.3x at "
            "100 MB",
            "top-K with feedback: at most 1.8x the time of r += g from 25 MB on",
            "top-K with feedback: at least 30x as fast as torch code from 25 MB on",
            "int8 with feedback: at most 1.3x the time of memcpy from 25 MB on",
            "int8 with feedback: at least 6x as fast as torch code from 25 MB on",
        ),
        compression("sum", "16-bit sum", "at least 8x as fast per element as gloo's fp16 sum"),
        compression(
            "powersgd",
            "PowerSGD of rank 2 and 4",
            "encode and decode at least 3x as fast as torch's hook, at 4 to 100 MB",
        ),
        compression(
            "exchange",
            "A bucket between two ranks",
            "25 MB at 1 Gbit/s: 16-bit at least 1.9x as fast as fp32, int8 3.6x, top-K 1 % 20x",
            "25 MB at 10 Gbit/s: 16-bit at least 1.6x as fast as fp32, int8 1.8x; 16-bit 1.2x as "
            "fast as torch's fp16 hook",
            "100 MB on loopback: 16-bit at least 1.7x as fast as torch's fp16 hook, top-K 1 % 3x "
            "as fast as fp32",
            "reported bytes equal counted bytes within 2 %; top-K at most 4.1 bytes per entry",
        ),
        compression(
            "accuracy",
            "Real gradients of 8 ranks compared with the fp64 mean",
            "error of fp16 at most 0.6x the error of torch's fp16 hook; error of int8 at most 1e-2",
        ),
        compression(
            "training",
            "The transformer's loss, 3 seeds",
            "loss of fp16, bf16 and int8 within the noise of plain DDP",
        ),
    ),
    "Shared memory": (
        shared(
            "all_reduce",
            "All-reduce on one host compared with gloo",
            "4 KB at least 6x as fast, 1 MB 5x, 25 MB and 100 MB 3x, at 2, 4 and 8 ranks",
            "100 MB at 2 ranks at most 3.5x the time of a pass of all ranks over their data",
        ),
        shared(
            "ddp",
            "A DDP step compared with plain DDP on gloo",
            "communication adds at most a third of the time that it adds on gloo, for the "
            "transformer and for 25M parameters, at 2 and 4 ranks",
            "step time never longer than on gloo",
        ),
        shared(
            "hosts",
            "All-reduce of 25 MB over two hosts",
            "no more bytes on the link than the least that an all-reduce needs",
            "faster than gloo at every point; at least 1.8x at 1 Gbit/s with 4 ranks per host",
        ),
        shared(
            "faults",
            "Ranks killed and stopped at any moment",
            "in 100 of 100 tries, an error names the rank in time, and nothing stays in /dev/shm",
        ),
    ),
    "Microbenchmark and predictions": (
        Study(
            "The microbenchmark compared with a minimal C++ loop over the same group",
            "microbench_floor.json",
            f"microbench_floor.py --json {RESULTS}/microbench_floor.json",
            ("from 1 MB on, busbw within 3 %", "below 1 MB, time within 10 us"),
            object_of(microbench_floor.demands),
        ),
        Study(
            "Two sweeps of the same machine",
            "microbench_aa.json",
            f"microbench_aa.py DIR --most-s 3600 --json {RESULTS}/microbench_aa.json",
            ("in 20 pairs, no more differences are flagged at 1 % than by chance",),
            object_of(microbench_aa.demands),
        ),
        Study(
            "Predicted steps of the timed workload",
            "predictions/predict_error.jsonl",
            f"predictions/predict_error.py --results {PREDICTIONS}/predict_error.jsonl",
            (
                "mean error at most 5 %, largest error at most 15 %",
                "smaller mean error than a prediction of no overlap, or of perfect overlap",
            ),
            predictions(of_transformer=False),
        ),
        Study(
            "Predicted steps of the transformer",
            "predictions/predict_error.jsonl",
            "predictions/predict_error.py --transformer "
            f"--results {PREDICTIONS}/predict_error.jsonl",
            (
                "mean error at most 5 %",
                "smaller mean error than a prediction of no overlap, or of perfect overlap",
            ),
            predictions(of_transformer=True),
        ),
        *(
            Study(
                f"Predicted {what}",
                "predictions/predict_sharded.jsonl",
                f"predictions/predict_sharded.py --study {study} "
                f"--results {PREDICTIONS}/predict_sharded.jsonl",
                (
                    "mean error at most 5 %, largest error at most 15 %",
                    "mean error at most a third of the error of a trivial prediction",
                ),
                sharded_predictions(study),
            )
            for study, what in (
                ("timed", "FSDP2 and HSDP steps of the timed workload"),
                ("transformer", "FSDP2 and HSDP steps of the transformer"),
                ("ddp", "DDP steps of the transformer between hosts"),
            )
        ),
        Study(
            "Intervals of predicted steps, compared with runs that were made later",
            "predictions/predict_intervals.jsonl",
            f"predictions/predict_intervals.py --results {PREDICTIONS}/predict_intervals.jsonl",
            ("at least 95 of 100 intervals contain the measured step",),
            rows_of(predict_intervals.demands),
        ),
    ),
    "Trials": (
        Study(
            "Verdicts of trials whose answer is known",
            "predictions/trial_truth.jsonl",
            "predictions/trial_truth.py all --out DIR; "
            f"cp DIR/results.jsonl {PREDICTIONS}/trial_truth.jsonl",
            (
                "the best variant named in 20 of 20 trials on a slow link",
                "no variant recommended in 20 of 20 trials in which none can help",
                "95 % of the 95 % intervals contain the true ratio",
            ),
            rows_of(trial_truth_demands.demands),
        ),
        Study(
            "Verdicts of trials of FSDP2's settings whose answer is known",
            "predictions/trial_truth_sharded.jsonl",
            "predictions/trial_truth.py all --sharded --out DIR; "
            f"cp DIR/results.jsonl {PREDICTIONS}/trial_truth_sharded.jsonl",
            (
                "the best variant named in 20 of 20 trials on a slow link",
                "no variant recommended in 20 of 20 trials in which none can help",
                "95 % of the 95 % intervals contain the true ratio",
            ),
            rows_of(trial_truth_demands.demands),
        ),
    ),
    "Launching": (
        Study(
            "Bytes that several hosts send",
            "multi_node.json",
            f"multi_node.py --results {RESULTS}/multi_node.json",
            ("2 and 4 hosts: link use and the interfaces' counters agree within 2 %",),
            object_of(multi_node.demands),
        ),
        Study(
            "Workloads and strategies side by side",
            "strategies.json",
            "strategies.py",
            ("transformer, resnet50 and lora by ddp and fsdp at 1, 2 and 4 ranks",),
            object_of(strategies.demands),
            beside=strategy_rows,
        ),
    ),
    "PyTorch's versions": (
        Study(
            "Each supported PyTorch: build, tests and one collective",
            "torch_versions.json",
            f"torch_versions.py --json {RESULTS}/torch_versions.json",
            (
                "the module builds for 6 of 6 minor versions",
                "no test of `make test` fails on any",
            ),
            parts_judged_by(torch_versions.demands),
            beside=torch_versions.beside,
        ),
    ),
    "Watching and surviving": (
        Study(
            "Cost of live metrics for a step",
            "live_overhead.json",
            f"own_cost/live_overhead.py --json {RESULTS}/live_overhead.json",
            (
                "wall time with / without live metrics: upper end of the interval at most 1.01 at "
                "2 and 4 ranks",
            ),
            object_of(live_overhead.demands),
        ),
        Study(
            "Ranks that hang",
            "hangs.jsonl",
            f"attribution/hangs.py --results {RESULTS}/hangs.jsonl",
            (
                "the rank named within 5 s of the threshold in 20 of 20 tries",
                "its stacks kept in 20 of 20",
            ),
            rows_of(hangs.demands),
        ),
        Study(
            "The fault matrix",
            "faults.json",
            f"faults.py --json {RESULTS}/faults.json",
            ("in all tries: training is unharmed, records are kept, and the cause is named",),
            object_of(faults.demands),
        ),
        Study(
            "PyTorch's own DDP tests",
            "torch_ddp_tests.json",
            "torch_ddp_tests.py --resume FILE --counts",
            ("each test ends in the same way with and without commprof attached",),
            torch_ddp_tests,
        ),
    ),
}
"""Studies by group, in the page's order."""
