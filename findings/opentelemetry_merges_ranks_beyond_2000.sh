#!/bin/bash
# Guess: OpenTelemetry's Python SDK keeps a series for each value of an attribute, so a counter with
# the attribute `rank` has 4,096 series at 4,096 ranks.
# Truth: an instrument keeps the first 2,000 and adds all others up in one series with the attribute
# otel.metric.overflow, which names no rank. Which ranks keep a series is the order of their first
# report. A View with aggregation_cardinality_limit lifts it.
# Seen with opentelemetry-sdk 1.45.2.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile opentelemetry-sdk==1.45.2 opentelemetry-exporter-prometheus==0.66b2 prometheus_client==0.26.0
fi
cat > "$work/job.py" <<'EOF'
import random

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import View


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def series(views=(), ranks=range(4096)):
    """Value of each series, by its attributes, after each rank waited for as many seconds."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], views=views).get_meter("job")
    waited = meter.create_counter("waited", unit="s")
    for rank in ranks:
        waited.add(rank, {"rank": rank})
    (resource,) = reader.get_metrics_data().resource_metrics
    points = resource.scope_metrics[0].metrics[0].data.data_points
    return {tuple(point.attributes.items()): point.value for point in points}


waited = series()
merged = ("otel.metric.overflow", True)
expect("series of 4,096 ranks", len(waited), 2001)
named = {dict(key)["rank"] for key in waited if merged not in key}
expect("ranks that have one: their number, the last", (len(named), max(named)), (2000, 1999))
expect("the other series", waited[(merged,)], sum(range(2000, 4096)))
ranks = list(range(4096))
random.Random(0).shuffle(ranks)
kept = {dict(key).get("rank") for key in series(ranks=ranks)}
expect("in another order the first 2,000 again", kept == {*ranks[:2000], None}, True)
view = View(instrument_name="waited", aggregation_cardinality_limit=4096)
expect("with a view of 4,096", len(series([view])), 4096)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
