from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
_TIMEOUT_S = 30


def chromium() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Page:
    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        #: Size of an empty page's screenshot, by the window's width and height.
        self.blank_bytes: dict[tuple[int, int], int] = {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call(
            "Network.emulateNetworkConditions",
            offline=True, latency=0, downloadThroughput=0, uploadThroughput=0,
        )  # fmt: skip

    def open(self, path: Path) -> None:
        self._call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.documentElement?.dataset.ready === 'yes'")

    def until(self, condition: str) -> None:
        end = time.monotonic() + _TIMEOUT_S
        while self.value(condition) is not True:
            assert time.monotonic() < end, (condition, self.complaints)
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        done = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def size(self, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self._frames(2)  # in a ResizeObserver, the page redraws and loses its focus

    def _frames(self, count: int) -> None:
        expression = (
            "new Promise((done) => { const next = (left) => left "
            f"? requestAnimationFrame(() => next(left - 1)) : done(true); next({count}); }})"
        )
        self._call("Runtime.evaluate", expression=expression, awaitPromise=True)

    def theme(self, name: str) -> None:
        self._call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )
        self._frames(2)

    def medium(self, name: str) -> None:
        self._call("Emulation.setEmulatedMedia", media=name)

    def press(self, key: str, code: int = 0) -> None:
        """``code`` is the virtual key code of a key that is not a letter."""
        typed = "\r" if key == "Enter" else key
        text = {"text": typed} if len(typed) == 1 else {}
        same = {"key": key, "windowsVirtualKeyCode": code or ord(key[0].upper())}
        self._call("Input.dispatchKeyEvent", type="keyDown", **same, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **same)

    def move(self, x: float, y: float) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, x: float, y: float, to_x: float) -> None:
        held = {"button": "left", "buttons": 1}
        self._call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, clickCount=1, **held)
        for step in range(1, 6):
            at = x + (to_x - x) * step / 5
            self._call("Input.dispatchMouseEvent", type="mouseMoved", x=at, y=y, **held)
        self._call("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=y, button="left")

    def wheel(self, x: float, y: float, delta: float, control: bool) -> None:
        self._call(
            "Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta,
            modifiers=2 if control else 0,
        )  # fmt: skip

    def screenshot(self) -> bytes:
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def painted(self, least_bytes: int) -> None:
        """Waits, because right after scrolling Chromium may not have painted the new part."""
        end = time.monotonic() + _TIMEOUT_S
        while (size := len(self.screenshot())) <= least_bytes:
            assert time.monotonic() < end, (size, least_bytes)
            time.sleep(0.02)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser ended"
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "about:")):
                self.complaints.append(f"asked for {url}")


@contextmanager
def browser(directory: Path) -> Iterator[Page]:
    path = chromium()
    assert path is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def place() -> None:
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4. A pipe
        # may already have one of these numbers, so both pipes are duplicated first.
        first, second = os.dup(to_read), os.dup(from_write)
        os.dup2(first, 3)
        os.dup2(second, 4)
        for number in (3, 4):
            os.set_inheritable(number, True)

    process = subprocess.Popen(
        [path, *_FLAGS, f"--user-data-dir={directory}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=place,
        close_fds=False,
        start_new_session=True,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(from_read, to_write)
    finally:
        process.kill()
        process.wait()
        os.close(from_read)
        os.close(to_write)
