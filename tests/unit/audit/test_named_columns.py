from __future__ import annotations

import pytest

from commprof.audit.audit import audit
from commprof.audit.checks import Finding

_AMDAHL = "P = 0.95\n\n| N | Amdahl speedup |\n|-|-|\n| 2 | 1.90 |\n| 4 | 3.48 |\n| 8 | {} |\n"
_BOTH = (
    "| GPUs | samples/s | speedup | Amdahl speedup |\n|-|-|-|-|\n"
    "| 1 | 100.0 | 1.00 | 1.00 |\n| 2 | 180.0 | {} | 1.90 |\n"
)
_EPOCHS = (
    "| GPUs | Epoch 0 (s) | Epoch 1 (s) | Epoch 2 (s) | {} |\n|-|-|-|-|-|\n"
    "| 1 | 16.1 | 7.9 | 7.9 | {} |\n"
)


def findings_in(text: str) -> list[Finding]:
    return list(audit(text).findings)


def test_an_amdahl_column_that_disagrees_with_amdahls_law_is_found() -> None:
    (found,) = findings_in(_AMDAHL.format("6.15"))
    assert (found.rule, found.row) == ("amdahl", "8 ranks")
    assert found.stated.text == "speed-up by Amdahl's law 6.15 (line 7)"
    assert found.implied.span.value == pytest.approx(1 / (0.05 + 0.95 / 8))
    assert findings_in(_AMDAHL.format("5.93")) == []


def test_a_rows_own_parallel_share_overrides_that_of_the_report() -> None:
    text = "P = 0.95\n\n| N | P | Amdahl |\n|-|-|-|\n| 8 | 50% | {} |\n"
    assert findings_in(text.format("1.78")) == []
    assert [f.rule for f in findings_in(text.format("5.93"))] == ["amdahl"]
    assert findings_in(text.format("5.93").replace("50%", "200%")) == []


def test_measured_speedup_is_checked_although_amdahls_is_given_too() -> None:
    assert findings_in(_BOTH.format("1.80")) == []
    (found,) = findings_in(_BOTH.format("1.95"))
    assert (found.rule, found.row) == ("speedup-from-throughput", "2 ranks")
    assert findings_in(_BOTH.format("1.80").replace("1.90", "1.90 (95% efficiency)")) == []


@pytest.mark.parametrize(
    ("header", "value", "inside"),
    [
        ("Total time (s)", "31.9", "the total"),
        ("Time/Epoch (s)", "10.6", "the time per epoch 10.6 s (line 3)"),
    ],
)
def test_a_warm_up_epoch_inside_a_total_or_a_mean_is_found(
    header: str, value: str, inside: str
) -> None:
    (found,) = findings_in(_EPOCHS.format(header, value))
    assert (found.rule, found.row) == ("warm-up", "1 rank")
    assert found.stated.text == f"first epoch 16.1 s (line 3), included in {inside}"
    assert found.implied.span.value == pytest.approx(7.9)


@pytest.mark.parametrize(
    ("header", "value"),
    [("Total time (s)", "15.8"), ("Time/Epoch (s)", "7.9"), ("Time/Epoch (s)", "9")],
)
def test_totals_and_means_without_the_warm_up_epoch_give_no_finding(
    header: str, value: str
) -> None:
    assert findings_in(_EPOCHS.format(header, value)) == []


def test_epoch_times_are_checked_only_if_all_epochs_are_shown() -> None:
    text = _EPOCHS.format("Time/Epoch (s)", "10.6")
    assert findings_in(text.replace("Epoch 2", "Epoch 10")) == []
    assert findings_in(text.replace("Epoch 0 (s)", "Epoch 0 (loss)")) == []


def test_epoch_times_are_checked_in_tables_with_world_sizes_as_columns() -> None:
    text = "| | 1 GPU | 2 GPUs |\n|-|-|-|\n| Epoch 1 | 16.1s | 4.0s |\n| Epoch 2 | 7.9s | 4.0s |\n"
    found = findings_in(text + "| Time per epoch | 12.0s | 4.0s |\n")
    assert [(f.rule, f.row) for f in found] == [("warm-up", "1 rank")]
