"""The report in a real browser: no console error, every figure drawn, light, dark and phone."""

import re
import shutil
import subprocess

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)
# Everything of the page must lie within its width; a wide table scrolls in its own frame.
PROBE = """<script>addEventListener("load",()=>{const d=document.documentElement;
const drawn=[...document.querySelectorAll("figure svg")].filter(s=>s.querySelector(
"polyline,rect,circle")&&s.getBoundingClientRect().width>200).length;
document.body.dataset.probe=`${drawn} ${d.scrollWidth<=d.clientWidth}`})</script>"""


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
@pytest.mark.parametrize("width", [500, 1280])
def test_the_report_loads_without_a_console_error(recguide, tmp_path, width):
    result = recguide(
        "bench", "--requests", 3, "--max-tokens", 12, "--concurrency", "1,2", "--out", "run"
    )
    assert result.exit_code == 0, result.output
    page = tmp_path / "run" / "report.html"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    size = f"--window-size={width},900"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [BROWSER, *FLAGS, size, profile, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
    )
    probe = re.search(r'data-probe="(\d+) (true|false)"', done.stdout)
    assert probe, done.stderr[-2000:]
    assert int(probe[1]) == text.count("<figure") > 5
    assert probe[2] == "true", "the page is wider than its window"
    assert "CONSOLE" not in done.stderr
