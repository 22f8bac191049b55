# SPDX-License-Identifier: BSD-2-Clause
"""Chromium without a window, asked through a pipe (its DevTools protocol): what a page does there,
with nothing but Python."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

PATIENCE_S = 60
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find(path=None):
    """The program, or None. A snap is none, nor a script that starts one: it sees another /tmp."""
    for found in filter(None, (shutil.which(name, path=path) for name in NAMES)):
        with open(found, "rb") as file:
            if os.path.basename(os.path.realpath(found)) != "snap" and \
                    b"/snap/bin" not in file.read(1 << 14):
                return found
    return None


PROGRAM = find()


class Browser:
    """One page of it. complaints: what its console, its policy and its scripts said. requests: the
    addresses that it asked for."""

    def __init__(self, width=1400, height=900, theme="light", **env):
        self.complaints, self.requests, self._number, self._rest = [], [], 0, b""
        self._folder = tempfile.TemporaryDirectory(prefix="browser-")
        theirs, self._out = os.pipe()
        self._in, theirs_too = os.pipe()
        # In the child 3 is what it reads, and 4 what it writes.
        self._process = subprocess.Popen(
            ["sh", "-c", f'exec 3<&{theirs} 4>&{theirs_too} "$@"', "sh", PROGRAM, "--headless",
             "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
             "--disable-lcd-text", "--force-color-profile=srgb",
             f"--user-data-dir={self._folder.name}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(theirs, theirs_too), start_new_session=True, env={**os.environ, **env},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(theirs_too)
        self._session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for name in "Page", "Runtime", "Log", "Network":
            self.ask(name + ".enable")
        self.prefer(theme)
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def _message(self):
        while b"\0" not in self._rest:
            data = os.read(self._in, 1 << 16)
            if not data:
                raise EOFError("the browser has ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def ask(self, method, **params):
        """The result of a call. What comes meanwhile is noted."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message.get("method"), message.get("params"))

    def _note(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(params)[:800])

    def prefer(self, theme, media=""):
        """media: "print", or "" for a screen."""
        self.ask("Emulation.setEmulatedMedia", media=media,
                 features=[{"name": "prefers-color-scheme", "value": theme}])

    def resize(self, width, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=False)

    def open(self, address):
        self.ask("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression."""
        done = self.ask("Runtime.evaluate", expression=script, returnByValue=True,
                        awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, script):
        end = time.monotonic() + PATIENCE_S
        while not self.run(script):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {script}")
            time.sleep(0.05)

    def picture(self, box=None):
        """The whole page, or (left, top, width, height) of it, as a PNG of base64."""
        left, top, width, height = box or [0, 0, *self.run(
            "(its => [its.scrollWidth, its.scrollHeight])(document.documentElement)")]
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        return self.ask("Page.captureScreenshot", format="png", clip=clip,
                        captureBeyondViewport=True)["data"]

    def looks(self, selectors, square):
        """{selector: (columns, rows, colours)} of elements: the mean red, green and blue of each
        square of so many pixels."""
        boxes = self.run("""(all => all.map(words => {
            const its = document.querySelector(words).getBoundingClientRect();
            const left = Math.floor(its.left + scrollX), top = Math.floor(its.top + scrollY);
            return [left, top, Math.ceil(its.right + scrollX) - left,
                    Math.ceil(its.bottom + scrollY) - top];
        }))""" + f"({json.dumps(selectors)})")
        left, top = (min(box[n] for box in boxes) for n in (0, 1))
        whole = [left, top, *(max(box[n] + box[n + 2] for box in boxes) - (left, top)[n]
                              for n in (0, 1))]
        parts = [[box[0] - left, box[1] - top, *box[2:]] for box in boxes]
        # A page may forbid pictures: they are made of bytes.
        found = self.run("""(async (data, boxes, square) => {
            const bytes = Uint8Array.from(atob(data), its => its.charCodeAt(0));
            const picture = await createImageBitmap(new Blob([bytes], {type: 'image/png'}));
            const on = new OffscreenCanvas(picture.width, picture.height)
                .getContext('2d', {willReadFrequently: true});
            on.drawImage(picture, 0, 0);
            return boxes.map(([left, top, width, height]) => {
                const pixels = on.getImageData(left, top, width, height).data;
                const columns = Math.ceil(width / square), rows = Math.ceil(height / square);
                const sums = new Float64Array(3 * columns * rows);
                const nums = new Float64Array(columns * rows);
                for (let y = 0, i = 0; y < height; y++)
                    for (let x = 0; x < width; x++, i += 4) {
                        const at = Math.floor(y / square) * columns + Math.floor(x / square);
                        nums[at]++;
                        for (let n = 0; n < 3; n++)
                            sums[3 * at + n] += pixels[i + n];
                    }
                return [columns, rows,
                        Array.from(sums, (sum, i) => Math.round(sum / nums[Math.floor(i / 3)]))];
            });
        })""" + f"({json.dumps(self.picture(whole))}, {json.dumps(parts)}, {square})")
        return {name: (columns, rows, bytes(colours))
                for name, (columns, rows, colours) in zip(selectors, found)}

    def mouse(self, kind, x, y, clicks=1):
        self.ask("Input.dispatchMouseEvent", type="mouse" + kind, x=x, y=y, clickCount=clicks,
                 button="none" if kind == "Moved" else "left", buttons=int(kind != "Released"))

    def drag(self, start, end):
        self.mouse("Pressed", *start)
        for part in 0.3, 0.7, 1.0:
            self.mouse("Moved", *(a + (b - a) * part for a, b in zip(start, end)))
        self.mouse("Released", *end)

    def key(self, name, shift=False):
        for kind in "rawKeyDown", "keyUp":
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                     modifiers=8 * shift)
