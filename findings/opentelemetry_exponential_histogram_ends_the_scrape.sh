#!/bin/bash
# Guess: OpenTelemetry's Prometheus exporter shows exponential histograms as native ones, as classic
# ones, or leaves them out with a warning.
# Truth: each scrape raises an AttributeError, and with it go all other metrics of the process: the
# endpoint answers nothing while one instrument has such a view.
# Seen with opentelemetry-sdk 1.45.2, opentelemetry-exporter-prometheus 0.66b2, prometheus_client
# 0.26.0.
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
import prometheus_client
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def scraped():
    """Names of the job's series in what the endpoint would answer, or the error."""
    try:
        text = prometheus_client.generate_latest().decode()
    except AttributeError as error:
        return str(error)
    samples = [line.split("{")[0].split()[0] for line in text.splitlines() if line[0] != "#"]
    return sorted({name for name in samples if name.startswith("job_")})


view = View(instrument_name="job.wait", aggregation=ExponentialBucketHistogramAggregation())
meter = MeterProvider([PrometheusMetricReader()], views=[view]).get_meter("job")
meter.create_counter("job.steps").add(1)
expect("before a wait is recorded", scraped(), ["job_steps_total"])
meter.create_histogram("job.wait", unit="s").record(0.001, {"rank": 0})
error = "'ExponentialHistogramDataPoint' object has no attribute 'value'"
expect("after it", scraped(), error)
expect("again", scraped(), error)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
