"""Drives a headless Chromium over W3C WebDriver with nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
START = re.compile(r"started successfully on port (\d+)")


class Browser:
    """One browser window."""

    def __init__(self, server: str) -> None:
        self._server = server
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        if os.geteuid() == 0:
            # Chromium's sandbox refuses to run as root, as in a container.
            arguments.append("--no-sandbox")
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": BROWSER, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def post(self, command: str, **body: Any) -> Any:
        """A command of the session."""
        return self._send("POST", f"{self._session}/{command}", body)

    def open(self, page: Path) -> None:
        """Loads a file."""
        self.post("url", url=page.absolute().as_uri())

    def run(self, script: str, *values: Any) -> Any:
        """What a function body returns in the page, a promise awaited."""
        return self.post("execute/sync", script=script, args=list(values))

    def protocol(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.post("goog/cdp/execute", cmd=command, params=parameters)

    def window(self, width: int, height: int, *, dark: bool = False) -> None:
        """Size of the page, and the scheme that the system asks for."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.protocol("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.protocol("Emulation.setEmulatedMedia", features=[scheme])

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Moves the pointer to a point of the window."""
        steps: list[dict[str, Any]] = [{"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}]
        if click:
            steps += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.post("actions", actions=[{"type": "pointer", "id": "mouse", "actions": steps}])

    def press(self, *keys: str) -> None:
        """Presses keys where the focus is."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.post("actions", actions=[{"type": "key", "id": "keyboard", "actions": steps}])

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What the browser has logged since the last call: "browser" or "performance"."""
        entries: list[dict[str, Any]] = self.post("se/log", type=kind)
        return entries

    def requests(self) -> list[str]:
        """Every address that has been asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.protocol("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.protocol("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """Ends the browser."""
        self._send("DELETE", self._session)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block; its driver listens on a free port of this machine."""
    assert DRIVER is not None
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            started = next((m for line in driver.stdout if (m := START.search(line))), None)
            assert started is not None, "chromedriver ended without a port"
            window = Browser(f"http://127.0.0.1:{started[1]}")
            try:
                yield window
            finally:
                window.close()
        finally:
            driver.terminate()
