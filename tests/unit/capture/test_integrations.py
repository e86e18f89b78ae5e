from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from commprof.errors import CommprofError

LIGHTNING = "commprof.capture.integrations.lightning"
TRANSFORMERS = "commprof.capture.integrations.transformers"
LIBRARIES = ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers")


@pytest.fixture(autouse=True)
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    for name in (LIGHTNING, TRANSFORMERS):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in (LIGHTNING, TRANSFORMERS):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (LIGHTNING, r"needs Lightning, .* pip install pytorch-lightning"),
        (TRANSFORMERS, r"needs transformers, .* pip install transformers accelerate"),
    ],
)
def test_importing_an_integration_names_its_missing_library(module: str, message: str) -> None:
    with pytest.raises(CommprofError, match=message):
        importlib.import_module(module)


class Recording:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, model: object) -> None:
        self.calls.append(f"start {model}")

    def step(self) -> None:
        self.calls.append("step")

    def figures(self) -> dict[str, float]:
        return {"commprof/exposed_ms": 1.5}

    def stop(self) -> None:
        self.calls.append("stop")


def callback(module: str, library: str, base: str, *arguments: Any) -> tuple[Any, list[str]]:
    fake = ModuleType(library)
    setattr(fake, base, type(base, (), {}))
    sys.modules[library] = fake
    made = importlib.import_module(module).CommprofCallback(*arguments)
    recording = Recording()
    made._recording = recording
    return made, recording.calls


def test_lightning_steps_end_with_optimizer_updates() -> None:
    made, calls = callback(LIGHTNING, "pytorch_lightning", "Callback")
    logged = []
    logger = SimpleNamespace(log_metrics=lambda values, step: logged.append((values, step)))
    trainer = SimpleNamespace(
        **{"global_step": 7, "strategy": SimpleNamespace(model="wrapped")},
        **{"log_every_n_steps": 3, "loggers": [logger]},
    )

    made.on_train_start(trainer, None)
    for batch, updates in enumerate((7, 8, 8, 9)):
        trainer.global_step = updates
        made.on_train_batch_end(trainer, None, None, None, batch)
    made.on_train_end(trainer, None)

    assert calls == ["start wrapped", "step", "step", "stop"]
    assert logged == [({"commprof/exposed_ms": 1.5}, 9)]


def test_lightning_without_logging_trains_and_logs_nothing() -> None:
    made, calls = callback(LIGHTNING, "pytorch_lightning", "Callback")
    made._log = lambda _: pytest.fail("logged")
    # In Lightning, log_every_n_steps=0 switches logging off.
    trainer = SimpleNamespace(
        **{"global_step": 0, "strategy": SimpleNamespace(model="wrapped"), "log_every_n_steps": 0}
    )

    made.on_train_start(trainer, None)
    trainer.global_step = 1
    made.on_train_batch_end(trainer, None, None, None, 0)

    assert calls == ["start wrapped", "step"]


def test_an_exception_under_lightning_closes_the_trace() -> None:
    made, calls = callback(LIGHTNING, "pytorch_lightning", "Callback")
    made.on_exception(None, None, ValueError())
    assert calls == ["stop"]


def test_the_lightning_package_that_the_script_imported_is_used() -> None:
    pytorch = ModuleType("lightning.pytorch")
    pytorch.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    sys.modules["lightning"] = ModuleType("lightning")
    sys.modules["lightning.pytorch"] = pytorch
    # pytorch_lightning may be installed, but was not imported.
    del sys.modules["pytorch_lightning"]
    module = importlib.import_module(LIGHTNING)
    assert issubclass(module.CommprofCallback, pytorch.Callback)


def test_transformers_callback_gets_the_wrapped_model_from_its_trainer() -> None:
    trainer = SimpleNamespace(model_wrapped="wrapped")
    made, calls = callback(TRANSFORMERS, "transformers", "TrainerCallback", trainer)

    made.on_train_begin(None, None, None, model="bare")
    made.on_step_end(None, None, None)
    made.on_train_end(None, None, None)

    assert calls == ["start wrapped", "step", "stop"]


def test_transformers_callback_logs_once_after_each_log_of_the_trainer() -> None:
    logged = []
    trainer = SimpleNamespace(model_wrapped="wrapped")
    made, _ = callback(TRANSFORMERS, "transformers", "TrainerCallback", trainer)

    def log(values: dict[str, float]) -> None:
        logged.append(values)
        # The Trainer's own ``log`` calls ``on_log``.
        made.on_log(None, None, None, logs=values)

    trainer.log = log
    log({"loss": 2.0})
    log({"loss": 1.0})

    assert logged == [
        *({"loss": 2.0}, {"commprof/exposed_ms": 1.5}),
        *({"loss": 1.0}, {"commprof/exposed_ms": 1.5}),
    ]
