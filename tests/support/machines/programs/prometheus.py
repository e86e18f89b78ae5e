from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commprof.monitor.monitor import address_file
from tests.support.machines.ranks import free_port

DEPLOY = Path(__file__).parents[4] / "deploy"
RULES = DEPLOY / "prometheus" / "commprof.rules.yml"


class Prometheus:
    def __init__(self, directory: Path, targets: list[str]) -> None:
        self.port = free_port()
        directory.mkdir()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "commprof", "static_configs": [{"targets": targets}]}],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def result(self, expression: str) -> list[Any]:
        with contextlib.suppress(OSError):
            found: list[Any] = self.get("query", query=expression)["result"]
            return found
        return []

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def until(seen: Callable[[], Any], what: str, timeout_s: float = 150) -> Any:
    end = time.monotonic() + timeout_s
    while not (found := seen()):
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.1)
    return found


def target(run: Path) -> str:
    path = address_file(run)
    until(path.exists, f"{path}")
    found = json.loads(path.read_text())
    return f"{found['host']}:{found['port']}"
