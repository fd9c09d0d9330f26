"""The page in headless Chromium, driven over the WebDriver protocol (plain HTTP, no package)."""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-device-scale-factor=1",
]  # fmt: skip
KINDS = {"draft", "correction", "bonus", "reused-correction", "reused-continuation", "prefill"}


class Browser:
    """One headless session."""

    def __init__(self, folder):
        self.port = free_port()
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={self.port}", "--allowed-ips=127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        wait_for(self._up)
        wish = {
            "browserName": "chrome",
            "goog:chromeOptions": {
                "binary": shutil.which("chromium"),
                "args": [*FLAGS, f"--user-data-dir={folder}"],
            },
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._post("/session", {"capabilities": {"alwaysMatch": wish}})
        self.session = f"/session/{made['sessionId']}"

    def _up(self):
        try:
            return self.http.get("/status").json()["value"]["ready"]
        except httpx.TransportError:
            return False

    def _post(self, path, body):
        answer = self.http.post(path, json=body).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, url):
        self._post(f"{self.session}/url", {"url": url})

    def run(self, script, *arguments):
        body = {"script": script, "args": list(arguments)}
        return self._post(f"{self.session}/execute/sync", body)

    def command(self, name, **parameters):
        """A command of the DevTools protocol."""
        self._post(f"{self.session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def type(self, selector, text):
        """Click an element and press keys, as a person does."""
        found = self._post(f"{self.session}/element", {"using": "css selector", "value": selector})
        element = f"{self.session}/element/{next(iter(found.values()))}"
        self._post(f"{element}/click", {})
        self._post(f"{element}/value", {"text": text})

    def look(self, width, height, scheme):
        """Screen size and colour scheme."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path):
        png = self.http.get(f"{self.session}/screenshot").json()["value"]
        Path(path).write_bytes(base64.b64decode(png))

    def complaints(self):
        """Warnings and errors of the console since the last call."""
        entries = self._post(f"{self.session}/se/log", {"type": "browser"})
        return [e["message"] for e in entries if e["level"] in ("SEVERE", "WARNING")]

    def close(self):
        try:
            self.http.delete(self.session)
        finally:
            self.http.close()
            self.driver.terminate()
            self.driver.wait(10)


def free_port():
    with socket.socket() as wire:
        wire.bind(("127.0.0.1", 0))
        return wire.getsockname()[1]


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromedriver: run scripts/install_browser.sh")
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def page(browser, live):
    browser.look(1280, 900, "light")
    browser.open(f"{live.url}/")
    ready = "return document.querySelectorAll('#method option').length > 2"
    try:
        wait_for(lambda: browser.run(ready))
    except AssertionError:
        pytest.fail(f"the page does not start: {browser.complaints()}")
    return browser


def keep(browser, name):
    """Save a screenshot where RECGUIDE_SCREENSHOTS points, for a person to look at."""
    folder = os.environ.get("RECGUIDE_SCREENSHOTS")
    if folder:
        browser.screenshot(Path(folder) / f"{name}.png")


def ask(page, text, tokens=60):
    page.run("document.getElementById('tokens').value = arguments[0]", str(tokens))
    page.run("document.getElementById('prompt').value = ''")
    page.type("#prompt", text + "\ue009\ue007\ue000")  # Control + Enter


def answered(page, words="equal"):
    wait_for(lambda: words in page.run("return document.getElementById('same-note').textContent"))


def test_a_prompt_streams_coloured_tokens(page, question):
    ask(page, question)
    wait_for(lambda: page.run("return document.querySelectorAll('.tok').length > 1"))
    seen_early = page.run("return document.querySelectorAll('.tok').length")
    answered(page)
    tokens = page.run(
        "return [...document.querySelectorAll('.tok')].map(t => [t.textContent, t.className])"
    )
    assert 1 < seen_early <= len(tokens) == 60
    kinds = {name.split()[2] for _, name in tokens}
    assert kinds <= KINDS
    assert {"draft", "prefill"} <= kinds
    colours = page.run(
        "return [...new Set([...document.querySelectorAll('.tok')]"
        ".map(t => getComputedStyle(t).backgroundColor))]"
    )
    assert len(colours) >= 3
    whole = page.run("return document.getElementById('text').textContent")
    assert whole == "".join(text for text, _ in tokens)
    assert page.run("return document.getElementById('same').textContent") == "yes"
    for tile in ("tps", "ar-tps", "tau", "forwards"):
        assert float(page.run(f"return document.getElementById('{tile}').textContent")) > 0
    rounds = page.run("return document.querySelectorAll('#rounds .round').length")
    assert rounds > 1
    assert page.run("return document.querySelectorAll('#timeline path').length") == 2
    assert page.complaints() == []
    keep(page, "light")


def test_the_text_is_the_apis_text(page, live, question):
    ask(page, question, 40)
    answered(page)
    body = live.chat(max_tokens=40).json()
    assert (
        page.run("return document.getElementById('text').textContent")
        == (body["choices"][0]["message"]["content"])
    )


def test_keys_show_round_and_margin(page, question):
    ask(page, question, 40)
    answered(page)
    page.type("#text", "\ue014\ue014\ue014")  # right arrow
    tip = page.run("const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent")
    assert "Round 1" in tip
    assert "argin" in tip
    assert page.run("return document.querySelectorAll('.round.lit').length") == 1
    assert page.run("return document.querySelectorAll('.tok.at').length") == 1
    keep(page, "tooltip")
    assert page.complaints() == []


@pytest.mark.parametrize(
    ("name", "width", "height", "scheme"),
    [("dark", 1280, 900, "dark"), ("phone", 390, 844, "light"), ("phone-dark", 390, 844, "dark")],
)
def test_dark_and_phone(page, question, name, width, height, scheme):
    page.look(width, height, scheme)
    ask(page, question)
    answered(page)
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(f"[{background[4:-1]}]")) < 200) == (scheme == "dark")
    keep(page, name)
    if width < 600:
        page.run("document.querySelector('.plots').scrollIntoView()")
        keep(page, f"{name}-plots")
    assert page.complaints() == []


def test_contrast_of_every_colour(page):
    """Text on its background, WCAG AA (4.5) for each token kind in both schemes."""
    script = """
      const kinds = arguments[0];
      const lum = (c) => {
        const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map((v) => {
          v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      return kinds.map((kind) => {
        const s = document.createElement('span'); s.className = `tok ${kind}`; s.textContent = 'x';
        document.getElementById('text').append(s);
        const style = getComputedStyle(s);
        const clear = style.backgroundColor === 'rgba(0, 0, 0, 0)';
        const back = clear ? getComputedStyle(s.closest('.card')).backgroundColor
          : style.backgroundColor;
        const [a, b] = [lum(style.color), lum(back)].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05); });
    """
    for scheme in ("light", "dark"):
        page.look(1280, 900, scheme)
        ratios = page.run(script, sorted(KINDS | {"ar", "reused-position"}))
        assert min(ratios) >= 4.5, (scheme, ratios)


def test_errors_are_shown_and_the_run_can_be_stopped(page, live, question):
    ask(page, question, 0)
    wait_for(lambda: page.run("return !document.getElementById('error').hidden"))
    assert "max_tokens" in page.run("return document.getElementById('error').textContent")
    page.complaints()  # the browser itself notes the 400
    ask(page, question, 1500)
    wait_for(lambda: page.run("return document.querySelectorAll('.tok').length > 1"))
    page.type("#prompt", "\ue00c")  # Escape
    wait_for(lambda: page.run("return document.getElementById('status').textContent") == "stopped")


def test_nothing_is_loaded_from_elsewhere(page, live):
    loaded = page.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded and all(name.startswith(live.url) for name in loaded)
    policy = httpx.get(f"{live.url}/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
