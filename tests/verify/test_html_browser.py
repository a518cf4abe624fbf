"""The page in a real browser: Debian's Chromium, which needs no display and no driver."""

from __future__ import annotations

import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from envkit.verify.report import StartedBy, timeline_page
from envkit.verify.report.page import html

from . import simulated, test_html, test_html_timeline

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
POLICY = re.compile(r"<meta http-equiv=[^>]*>")
FRAME = "<!DOCTYPE html><iframe src='page.html' width='{width}' height='800' style='border: 0'></iframe>"
# Runs in the page, without the policy that forbids it there, and leaves what it measured where --dump-dom prints it.
MEASURE = """<script>addEventListener("load", () => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  const wide = [...document.querySelectorAll("body *")].filter(one => !one.closest("svg"))
    .filter(one => one.getBoundingClientRect().right > innerWidth + 0.5).map(one => one.tagName);
  const told = `width ${innerWidth} content ${document.documentElement.scrollWidth} wide [${wide}]`;
  parent.document.title = told;
});</script>"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


class Served:
    """A folder served on this machine, and the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        asked: list[str] = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: object) -> None:
                super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

            def log_request(self, code: object = "-", size: object = "-") -> None:
                asked.append(self.path)

        self.asked = asked
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A folder `site`, served."""
    (tmp_path / "site").mkdir()
    site = Served(tmp_path / "site")
    thread = threading.Thread(target=site.server.serve_forever)
    thread.start()
    yield site
    site.server.shutdown()
    site.server.server_close()
    thread.join()


@pytest.fixture(params=["small", "failed", "many", "timeline"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A report's page: a PASS with everything measured, a FAIL with long names, very many ranks; a timeline's."""
    if request.param == "small":
        return html(test_html.measured(test_html.report("pytorch-2ranks")))
    if request.param == "timeline":
        names = (f"allreduce.{'a_very_long_name_of_a_layer.' * 5}{number}" for number in range(40))
        events = [event for number, name in enumerate(names) for event in test_html_timeline.of_tensor(number, name)]
        return timeline_page.html(test_html_timeline.summary(events), "a-long-name-of-a-timeline" * 5)
    if request.param == "failed":
        name = "a-very-long-name-of-a-host.cluster.institute.university.example.org"
        shown = test_html.report("rank-killed")
        rows = tuple(replace(row, name=name) for row in shown.hosts)
        ranks = tuple(replace(row, host=name) for row in shown.ranks)
        started = StartedBy(launcher="srun", why="in a job", command=("srun", "--" + "x" * 200), nodes=(name,))
        facts = tuple(replace(one, common=replace(one.common, host=name)) for one in shown.facts)
        return html(replace(shown, hosts=rows, ranks=ranks, started=started, facts=facts, launcher_said="y" * 300))
    (tmp_path / "facts").mkdir()
    simulated.write(tmp_path / "facts", 512, 4, killed=9, late=77)
    return html(simulated.report(tmp_path / "facts", 512))


def chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)


def test_it_renders_without_a_complaint_and_asks_for_nothing_else(page: str, served: Served, tmp_path: Path) -> None:
    (tmp_path / "site" / "page.html").write_text(page)
    done = chromium(tmp_path, "--dump-dom", f"{served.url}/page.html")
    assert "<h1>" in done.stdout
    assert "CONSOLE" not in done.stderr
    assert served.asked == ["/page.html"]


def measured_width(page: str, width: int, served: Served, folder: Path) -> str:
    """What a window of that width shows: its own width, that of its content, and the elements that stand out."""
    (folder / "site" / "page.html").write_text(POLICY.sub("", page) + MEASURE)
    (folder / "site" / "frame.html").write_text(FRAME.format(width=width))
    done = chromium(folder, "--window-size=1400,900", "--dump-dom", f"{served.url}/frame.html")
    (told,) = re.findall("<title>(.*)</title>", done.stdout)
    return str(told)


@pytest.mark.parametrize("width", [360, 1280])
def test_it_is_as_wide_as_the_window(page: str, served: Served, tmp_path: Path, width: int) -> None:
    assert measured_width(page, width, served, tmp_path) == f"width {width} content {width} wide []"


def test_what_is_too_wide_would_be_seen(served: Served, tmp_path: Path) -> None:
    page = html(test_html.report("pytorch-2ranks")).replace("</main>", f"<nobr>{'x' * 99}</nobr></main>")
    assert "wide [NOBR]" in measured_width(page, 360, served, tmp_path)


def test_it_prints(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page)
    chromium(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", (tmp_path / "page.html").as_uri())
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 14


def test_a_script_would_be_refused(served: Served, tmp_path: Path) -> None:
    page = html(test_html.report("pytorch-2ranks")).replace("</body>", "<script>document.title='ran'</script></body>")
    (tmp_path / "site" / "page.html").write_text(page)
    done = chromium(tmp_path, "--dump-dom", f"{served.url}/page.html")
    assert "<title>ran</title>" not in done.stdout
    assert "Content Security Policy" in done.stderr
