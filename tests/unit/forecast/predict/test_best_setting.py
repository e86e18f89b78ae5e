from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.predicted import read_best
from commprof.analysis.verdict import verdict
from commprof.commands import main
from commprof.commands.options.parser import Parser
from commprof.commands.running.run_arguments import add_arguments
from commprof.commands.running.run_checks import checked_targets
from commprof.commands.running.run_context import save_config
from commprof.errors import CommprofError
from commprof.forecast.commands.tried_setting import tried
from commprof.forecast.replay.recorded import RecordedJob
from commprof.forecast.replay.replay import Replay
from commprof.forecast.report import as_json, best
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.what_if.answers import Answers, answer
from commprof.launch.pinning import place_ranks
from commprof.trace.run.run_directory import CONFIG_FILE, PREDICTIONS_FILE
from tests.support.builders.results import context, detail, run_result, world
from tests.support.builders.schedules import hook, profile, schedule

RUN = {"command": "python -m commprof.run --nproc 4 --output o --trial int8 --steps 9 train.py 3"}
SCRIPT = {**RUN, "script": ["train.py", "3"]}
WORKLOAD = {"command": "commprof run --world-sizes 2,4 --strategy fsdp", "workload": "mlp"}


def predicted(*scenarios: Scenario, held_out_ms: float | None = None) -> Answers:
    """The recorded step takes 40 ms. The model gives 34 ms with fp16, and 55 ms for 4 ranks."""
    others = []
    if held_out_ms is not None:
        period_s = np.full(5, held_out_ms / 1e3)
        others = [RecordedJob("RUN, 4 ranks", schedule(ranks=4, period_s=period_s), ())]
    made = Replay(schedule(), profile(hooks=(hook(),)))
    return answer(made, scenarios, [], others, None, math.nan)


@pytest.mark.parametrize(
    ("scenarios", "held_out_ms", "said"),
    [
        ((Scenario(2, hook=""), Scenario(2, hook="fp16")), 50, "that is 15.0% less than in the re"),
        ((Scenario(2, hook="fp16"),), None, "if the model is right: its error is not known"),
        ((Scenario(2, hook="fp16"),), 55 / 1.3, "it is not certain that this setting takes less"),
        ((Scenario(2, hook=""),), 50, "it is not certain that this setting takes less"),
    ],
)
def test_the_setting_with_the_shortest_step_is_named_with_its_saving(
    scenarios: tuple[Scenario, ...], held_out_ms: float | None, said: str
) -> None:
    found = predicted(*scenarios, held_out_ms=held_out_ms)
    assert found.best is not None
    assert found.best.candidate.prediction.scenario is scenarios[-1]
    text = best.render(found.best, found.error, ["no compressor"], "commprof run --hook fp16")
    assert said in " ".join(text.split())
    assert text.endswith("  commprof run --hook fp16\n")
    assert ("Shortest step of the changed settings: 34" in text) == (scenarios[-1].hook == "fp16")


def test_a_searched_setting_is_compared_with_the_recorded_one() -> None:
    made = Replay(schedule(), profile(hooks=(hook(), hook("int8", overhead_s=0.010))))
    found = answer(made, [Scenario(2, hook="int8")], [], [], ["hook"], math.nan)
    assert found.answers[0].candidates[0].gain == pytest.approx(1 - 34 / 51)
    assert found.best is not None
    assert found.best.candidate.prediction.scenario.hook == "fp16"
    assert found.best.candidate.gain == pytest.approx(1 - 34 / 40)
    text = " ".join(best.render(found.best, None, [], "commprof run --hook fp16").split())
    assert "with hook fp16; that is 15.0% less than in the recorded setting" in text


def test_the_best_setting_in_json_has_the_fields_of_a_candidate() -> None:
    made = Replay(schedule(), profile(hooks=(hook(),)))
    found = answer(made, [Scenario(2)], [], [], ["hook"], math.nan)
    document = json.loads(as_json.render(found, "RUN", "by hand", []))
    assert document["best"]["candidate"] == document["answers"][0]["candidates"][0]
    assert document["best"]["candidate"]["prediction"]["exposed_s"] == pytest.approx(0.014)


def test_there_is_no_best_setting_if_none_was_asked_for() -> None:
    assert predicted(Scenario(2), Scenario(4)).best is None
    # Only settings with the ranks and the link of the first setting are compared.
    found = predicted(Scenario(2), Scenario(4, hook="fp16"), Scenario(2, hook="fp16"))
    assert found.best is not None
    assert found.best.candidate.prediction.scenario.world_size == 2


@pytest.mark.parametrize(
    ("scenario", "told", "options", "in_script", "command"),
    [
        (
            Scenario(4, reshard_after_forward=False, reduce_dtype="bf16"),
            SCRIPT,
            {"fsdp": "reshard-after-forward=false+reduce-dtype=bf16"},
            (),
            "commprof run --check-prediction r --world-sizes 4 "
            "--fsdp reshard-after-forward=false+reduce-dtype=bf16 --steps 9 train.py 3",
        ),
        (
            Scenario(4, hook="int8", bucket_cap_bytes=5 * 2.0**20),
            SCRIPT,
            {"hook": "int8", "bucket_cap_mb": "5"},
            (),
            "run --check-prediction r --world-sizes 4 --hook int8 --bucket-cap-mb 5 --steps 9 "
            "train.py 3",
        ),
        (
            Scenario(4, shard_ranks=2),
            WORKLOAD,
            {"strategy": "hsdp:shard=2"},
            (),
            "commprof run --check-prediction r --world-sizes 4 --strategy hsdp:shard=2",
        ),
        (
            Scenario(4, wrap_blocks=2),
            {**WORKLOAD, "strategy": "hsdp:shard=2,wrap_blocks=3"},
            {"strategy": "hsdp:shard=2,wrap_blocks=6"},
            (),
            "--world-sizes 4 --strategy hsdp:shard=2,wrap_blocks=6",
        ),
        (
            Scenario(4, shard_ranks=4, wrap_blocks=2),
            {**WORKLOAD, "strategy": "hsdp:shard=2"},
            {"strategy": "fsdp:wrap_blocks=2"},
            (),
            "--world-sizes 4 --strategy fsdp:wrap_blocks=2",
        ),
        (
            Scenario(4, accumulate=2),
            WORKLOAD,
            {"accumulate": "2"},
            (),
            "commprof run --check-prediction r --world-sizes 4 --accumulate 2 --strategy fsdp",
        ),
        (
            Scenario(4, wrap_blocks=2, accumulate=2),
            SCRIPT,
            {},
            (
                "fully_shard([...]) on each group of 2 neighbouring blocks",
                "2 backward passes per optimizer step",
            ),
            "commprof run --check-prediction r --world-sizes 4 --steps 9 train.py 3",
        ),
        (
            Scenario(4, shard_ranks=2, gather_dtype="bf16"),
            SCRIPT,
            {},
            (
                "fully_shard(..., mesh=init_device_mesh(..., (2, 2)))",
                "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
                "reduce_dtype=...))",
                "set reduce_dtype to the type in which the recorded run reduces gradients",
            ),
            "commprof run --check-prediction r --world-sizes 4 --steps 9 train.py 3",
        ),
        (
            Scenario(4, reduce_dtype="bf16"),
            {"command": "commprof run --fsdp prefetch=2 --nproc 4 t.py", "script": ["t.py"]},
            {"fsdp": "prefetch=2+reduce-dtype=bf16"},
            (),
            "run --check-prediction r --world-sizes 4 --fsdp prefetch=2+reduce-dtype=bf16 t.py",
        ),
        (
            Scenario(4, gather_dtype="bf16", reshard_after_forward=True),
            {
                "command": "commprof run --fsdp=reshard-after-forward=false --strategy fsdp",
                "workload": "mlp",
            },
            {"fsdp": "reshard-after-forward=true", "precision": "bf16"},
            (),
            "--fsdp reshard-after-forward=true --precision bf16 --strategy fsdp",
        ),
        (
            Scenario(2, hook=""),
            {"command": "commprof run --hook fp16 --steps 9 t.py", "script": ["t.py"]},
            {},
            (),
            "commprof run --check-prediction r --world-sizes 2 --steps 9 t.py",
        ),
        (
            Scenario(2, hook=""),
            SCRIPT,
            {},
            ("no compressor",),
            "commprof run --check-prediction r --world-sizes 2 --steps 9 train.py 3",
        ),
        (
            Scenario(2, bucket_cap_bytes=0.0),
            {},
            {"bucket_cap_mb": "1e-06"},
            (),
            "these options: --check-prediction r --world-sizes 2 --bucket-cap-mb 1e-06",
        ),
        (
            Scenario(2, bucket_cap_bytes=math.inf),
            {},
            {"bucket_cap_mb": "10000"},
            (),
            "run the job with commprof run and these options: --check-prediction r "
            "--world-sizes 2 --bucket-cap-mb 10000",
        ),
    ],
)
def test_a_predicted_setting_is_turned_into_a_command_and_script_changes(
    scenario: Scenario,
    told: dict[str, Any],
    options: dict[str, str],
    in_script: tuple[str, ...],
    command: str,
) -> None:
    found = tried(scenario, told, Path("r"))
    assert (found.options, found.in_script) == (options, in_script)
    assert found.command.endswith(command)


def test_hsdp_keeps_its_number_of_ranks_per_copy_in_a_larger_world() -> None:
    told = {**WORKLOAD, "strategy": "hsdp"}
    found = tried(Scenario(8, accumulate=2), told, Path("r"), shard_ranks=2)
    assert found.options == {"strategy": "hsdp:shard=2", "accumulate": "2"}
    assert tried(Scenario(8, accumulate=2), SCRIPT, Path("r"), shard_ranks=2).options == {}


def test_a_setting_predicted_from_an_archive_is_tried_without_a_comparison(tmp_path: Path) -> None:
    archive = tmp_path / "traces.zip"
    archive.touch()
    found = tried(Scenario(2, hook="fp16"), {}, archive)
    assert found.command.endswith("and these options: --world-sizes 2 --hook fp16")
    made = predicted(Scenario(2, hook="fp16"), held_out_ms=50)
    assert made.best is not None
    text = best.render(made.best, made.error, (), found.command)
    assert "\nTo try this setting:\n" in text


def keep(directory: Path) -> Path:
    found = predicted(Scenario(2, hook="fp16"), held_out_ms=50)
    assert found.best is not None
    how = {"options": {"hook": "fp16"}, "in_script": [], "command": "commprof run"}
    path = directory / PREDICTIONS_FILE
    path.write_text(as_json.render(found, "RUN", "by hand", [], how))
    return path


def test_a_saved_best_setting_is_read_again(tmp_path: Path) -> None:
    found = read_best(keep(tmp_path))
    assert (found.world_size, found.setting, found.options) == (2, "hook fp16", {"hook": "fp16"})
    assert found.step_ms.low < found.step_ms.value < found.step_ms.high
    assert found.step_ms.value == pytest.approx(34)
    assert found.is_interval


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--world-sizes", "2"],
            "is for a run with --hook fp16; give this option, or leave",
        ),
        (["--world-sizes", "2", "--hook", "int8"], "a run with --hook fp16; give this"),
        (
            ["--world-sizes", "3", "--hook", "fp16"],
            "is for 2 ranks, not 3; give --world",
        ),
    ],
)
def test_check_prediction_refuses_a_run_with_another_setting(
    tmp_path: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path)
    given = ["--check-prediction", str(tmp_path), "--dry-run", *arguments]
    assert main(["run", *given]) == 2
    assert complaint in capsys.readouterr().err
    if len(arguments) < 4:
        assert main(["run", *given, "--hook", "fp16"]) == 0


def test_check_prediction_is_kept_in_the_saved_configuration(tmp_path: Path) -> None:
    keep(tmp_path)
    parser = Parser(prog="commprof run")
    add_arguments(parser)
    asked = ["--check-prediction", str(tmp_path), "--hook", "fp16"]
    args = parser.parse_args(asked)
    args.placement = place_ranks("none", "1", [2], 1)
    checked_targets(args, [2])
    save_config(tmp_path, args, [2])
    again = parser.parse_args(["--config", str(tmp_path / CONFIG_FILE)])
    assert (again.check_prediction, again.hook) == (tmp_path, "fp16")


@pytest.mark.parametrize("text", ["{}", json.dumps({"best": None}), "\xff"])
def test_a_file_without_a_best_setting_is_refused_with_how_to_make_one(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(CommprofError, match=r"names no best setting .* predict RUN"):
        read_best(tmp_path / "p.json")
    with pytest.raises(CommprofError, match="cannot be read"):
        read_best(tmp_path / "none")


@pytest.mark.parametrize(
    ("measured_ms", "is_interval", "bounds", "said"),
    [
        (405, True, "[398, 430]", "405 ms, inside that range; the prediction is off by +1.7%."),
        (380, True, "[398, 430]", "380 ms, outside that range; the prediction is off by +8.4%."),
        (405, False, "(398 to 430)", "405 ms, inside that range; the prediction is off by +1.7%."),
    ],
)
def test_the_report_compares_the_run_with_the_prediction(
    measured_ms: float, is_interval: bool, bounds: str, said: str
) -> None:
    told = {
        "run": "old",
        "setting": "resharding off",
        "world_size": 2,
        "step_ms": {"value": 412.0, "low": 398.0, "high": 430.0},
        "is_interval": is_interval,
    }
    result = run_result(world(2, step_median_ms=measured_ms), context=context(predicted=told))
    found = verdict(result, [detail(2)])
    assert found is not None
    assert found.headline.endswith(
        f"Predicted step from old with resharding off: 412 {bounds} ms. Measured: {said}"
    )
