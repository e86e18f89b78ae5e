"""Makes the page "What PyTorch really does" from the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.beliefs.asking import TOPICS, Belief, beliefs

_TITLES = {
    "gloo": "Collectives and messages over gloo",
    "groups": "Process groups",
    "ddp": "DistributedDataParallel",
    "sharding": "FSDP2, DTensor, meshes, pipelines, checkpoints",
    "functional": "Functional collectives and torch.compile",
    "recorders": "Flight Recorder and torch.profiler",
}

_BITS = "`test_the_hook_gives_the_bits_of_ddp_except_for_views_that_are_kept`; [trials](trials.md)"
_THEORY = "`theory.broadcast_buffers` tells when DDP sends buffers; a test checks this"
_FINDING = "`findings/{}.sh`"
#: What a wrong guess changed in commprof, by the belief's name.
_LED_TO = {
    "ddp_multiplies_kept_views": _BITS,
    "ddp_views_change_bits": _BITS + "; " + _FINDING.format("ddp_bucket_views_change_bits"),
    "ddp_caps_change_bits": "with 3 or more ranks, a trial undoes the steps whose buckets differ "
    "from the script's (`Candidate.exact`)",
    "gloo_sums_by_position": "with 3 or more ranks, a trial undoes the steps whose buckets differ "
    "from the script's (`Candidate.exact`)",
    "ddp_buffers_in_no_sync": _THEORY,
    "ddp_broadcast_buffers_warns": _THEORY,
    "ddp_no_sync_after_forward": "after a forward without a backward, a trial's first step "
    "exchanges twice, with equal gradients; "
    + _FINDING.format("ddp_forward_without_backward_undoes_no_sync"),
    "ddp_two_backwards": _FINDING.format("ddp_second_backward_is_local"),
    "ddp_second_backward": _FINDING.format("ddp_second_backward_is_local"),
    "ddp_unused": _FINDING.format("ddp_unused_parameter_leaves_gradients_local"),
    "ddp_unused_averages": _FINDING.format("ddp_unused_parameter_leaves_gradients_local"),
    "ddp_hook_annotated": _FINDING.format("ddp_hook_refused_under_future_annotations"),
    "ddp_compiled_small_cap": "the help of `--bucket-cap-mb` says so; "
    + _FINDING.format("compile_refuses_small_ddp_buckets"),
    "ddp_around_compiled_small_cap": "the help of `--bucket-cap-mb` says so; "
    + _FINDING.format("compile_refuses_small_ddp_buckets"),
    "default_backend": "the Python capture names the backend in use; a test checks this",
    "recorder_reduce_scatter": "for gloo, commprof takes a reduce-scatter's name from its stack; "
    "a test checks this; " + _FINDING.format("flight_recorder_gloo_misses_messages"),
    "recorder_messages": _FINDING.format("flight_recorder_gloo_misses_messages"),
    "recorder_monitored_barrier": _FINDING.format("flight_recorder_gloo_misses_messages"),
    "recorder_json_keys": "[recordings](recordings.md#dumps-of-a-job-with-gloo) says so",
    "reduce_scatter_completes_unwaited": "commprof takes the end of `wait()` as the end of a "
    "reduce-scatter over gloo; " + _FINDING.format("gloo_reduce_scatter_ends_in_wait"),
    "reduce_scatter_has_future": "commprof takes the end of `wait()` as the end of a "
    "reduce-scatter over gloo; " + _FINDING.format("gloo_reduce_scatter_ends_in_wait"),
    "functional_is_dropped": _FINDING.format("functional_result_unused_is_kept"),
    "random_tensor": _FINDING.format("dtensor_randn_asserts_on_cpu"),
    "fsdp_forward_before_step": _FINDING.format("fsdp2_forward_before_step_is_stale"),
    "fsdp_pass_after_validation": _FINDING.format("fsdp2_forward_before_step_is_stale"),
    "fsdp_is_asynchronous": _FINDING.format("fsdp2_over_gloo_overlaps_nothing"),
    "async_save_group": _FINDING.format("async_save_uses_the_training_group"),
    "threads_of_two_interfaces": _FINDING.format("gloo_two_interfaces_take_turns"),
    "load_of_missing_key": _FINDING.format("checkpoint_errors_are_no_exceptions"),
}

_HEAD = """\
# What PyTorch really does

This page lists statements about PyTorch that an engineer of this field would make from memory.
Parts of commprof depend on these statements. Each statement was written down before it was tested.
The tests use torch alone, over gloo on CPUs, on two ranks unless another number is given. `python
benchmarks/torch_beliefs.py` repeats the tests with the installed torch; `--only NAME` repeats one
test. The questions are functions in `benchmarks/beliefs`. `--write` makes this page.

"""


def page(answers: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the page.

    answers: for each version of torch, the answers by the name of the belief.
    """
    every, versions = beliefs(), sorted(answers, key=_order)
    asked = [one for one in every.values() if any(one.name in answers[v] for v in versions)]
    wrong = [one for one in asked if _is_wrong(one, answers, versions)]
    led = sum(one.name in _LED_TO for one in wrong)
    newest = versions[-1]
    now = sum(_is_wrong(one, answers, [newest]) for one in asked)
    of_newest = sum(answers[newest].get(one.name, "-") != "-" for one in asked)
    counts = (
        f"{len(wrong)} of {len(asked)} statements are wrong in at least one of the versions "
        f"{', '.join(versions)}. {of_newest} statements were tested with {newest}, and {now} of "
        "these statements are wrong. A dash marks a statement that was not tested. The last column "
        f"tells what a wrong statement changed in commprof ({led} statements), or which file "
        "depends on the statement. Before torch 2.13 Flight Recorder has no entries over gloo.\n"
    )
    parts = [_HEAD, counts]
    for topic in TOPICS:
        here = [one for one in asked if one.topic == topic]
        parts.append(f"\n## {_TITLES[topic]}\n")
        parts += _wrong_table([one for one in here if one in wrong], answers, versions)
        if right := [one for one in here if one not in wrong]:
            parts.append("\nAs one would guess:\n\n")
            parts += [f"- {one.guess} (`{one.name}`)\n" for one in right]
    return "".join(parts)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _is_wrong(
    one: Belief, answers: Mapping[str, Mapping[str, str]], versions: Sequence[str]
) -> bool:
    seen = {answers[version].get(one.name, "-") for version in versions} - {"-"}
    return not seen <= {one.expected}


def _wrong_table(
    rows: Sequence[Belief], answers: Mapping[str, Mapping[str, str]], versions: Sequence[str]
) -> list[str]:
    if not rows:
        return []
    names = " | ".join(versions)
    lines = [
        f"\n| one would guess | {names} | what follows |\n",
        f"|{'---|' * (len(versions) + 2)}\n",
    ]
    for one in rows:
        ranks = "" if one.ranks == 2 else f", {one.ranks} rank{'s' if one.ranks > 1 else ''}"
        cells = " | ".join(_cell(one, answers[version].get(one.name, "-")) for version in versions)
        follows = _LED_TO.get(one.name) or (f"`{one.where}`" if one.where else "")
        lines.append(f"| {one.guess} (`{one.name}`{ranks}) | {cells} | {follows} |\n")
    return lines


def _cell(one: Belief, answer: str) -> str:
    return "so" if answer == one.expected else answer.replace("|", "/").replace("_", "\\_")
