"""Installations that are stopped at known steps, and what is left of them."""

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .site import TOYS, Site, until

pytestmark = pytest.mark.integration

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
SIGNALS = pytest.mark.parametrize("number", list(STATUS), ids=lambda number: number.name)
SAYS = {signal.SIGINT: "Stopped by Ctrl-C.", signal.SIGTERM: "Stopped by SIGTERM.", signal.SIGKILL: ""}
HOOKS = {"EASYBUILD_HOOKS": str(TOYS / "hooks.py")}


def nothing_is_left(site: Site) -> None:
    """Check that no process goes on and no environment can be seen."""
    assert site.is_quiet()
    assert not site.is_offered("toy-top")
    refused = site.run("run", "toy-top-1.0", "--", "true", status=6)
    assert "There is no environment 'toy-top-1.0'." in refused.err


def resumes(site: Site, stage: str, left: list[str]) -> None:
    """Install again: it says what is left, and builds that only."""
    site.let_go()
    before = site.begun()
    resumed = site.installed("toy-top")
    assert "Resuming what began " in resumed.out
    assert f" and ended while {stage} (log: " in resumed.out
    named = ", ".join(f"{module}/1.0" for module in left)
    assert f"{3 - len(left)} of 3 modules are in place; left: {named}." in resumed.out
    assert site.begun()[len(before) :] == [f"{module}/1.0" for module in left]
    assert site.is_offered("toy-top")
    assert not list((site.tree / "unfinished").iterdir())
    site.run("run", "toy-top-1.0", "--", "toy-top")


def stopped_says(site: Site, err: str, number: signal.Signals, module: str) -> None:
    """Check what a stopped installation says; one that is killed says nothing."""
    assert SAYS[number] in err
    if number == signal.SIGKILL:
        assert err == ""
    else:
        assert f"{module} was being built; nothing of the build goes on." in err
        assert "What to do: Run the same command again: it resumes." in err


@SIGNALS
def test_while_a_compiler_runs(site: Site, number: signal.Signals) -> None:
    os.mkfifo(site.home / "slow.c")
    (site.home / "more-sources").write_text(str(site.home / "slow.c"))
    running = site.install("toy-top")
    site.process("cc1 ")
    assert running.stop(number) == STATUS[number]
    stopped_says(site, running.err, number, "toy-base/1.0")
    nothing_is_left(site)
    assert site.built() == set()
    (site.home / "more-sources").write_text("")
    resumes(site, "building", ["toy-base", "toy-middle", "toy-top"])


@SIGNALS
def test_in_the_middle_of_the_second_module(site: Site, number: signal.Signals) -> None:
    site.hold("middle")
    running = site.install("toy-top")
    site.wait_for(running, "middle")
    assert running.stop(number) == STATUS[number]
    stopped_says(site, running.err, number, "toy-middle/1.0")
    nothing_is_left(site)
    assert site.built() == {"toy-base"}
    resumes(site, "building", ["toy-middle", "toy-top"])


@SIGNALS
def test_while_eb_itself_works(site: Site, number: signal.Signals) -> None:
    site.hold("eb-toy-top")
    running = site.install("toy-top", env=HOOKS)
    site.wait_for(running, "eb-toy-top")
    assert running.stop(number) == STATUS[number]
    stopped_says(site, running.err, number, "toy-top/1.0")
    nothing_is_left(site)
    assert site.built() == {"toy-base", "toy-middle"}
    resumes(site, "building", ["toy-top"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_while_the_plan_is_made(site: Site, number: signal.Signals) -> None:
    site.hold("plan")
    running = site.install("toy-top", env={**HOOKS, "XDG_CACHE_HOME": str(site.folder / "cache")})
    site.wait_for(running, "plan")
    assert running.stop(number) == STATUS[number]
    assert SAYS[number] in running.err
    assert "What to do: Run the same command again" in running.err
    assert site.is_quiet()
    assert not site.prefix.exists()
    assert not list(site.folder.glob("envkit-plan-*"))


class SlowSource:
    """A server that gives the first bytes of the source, and the others only after ``go_on`` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked = threading.Event()
        content = (TOYS / "toy.c").read_bytes()
        go_on, asked = self.go_on, self.asked

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:10])
                asked.set()
                go_on.wait()
                self.wfile.write(content[10:])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def slow_source() -> Iterator[SlowSource]:
    source = SlowSource()
    thread = threading.Thread(target=source.server.serve_forever)
    thread.start()
    yield source
    source.go_on.set()
    source.server.shutdown()
    source.server.server_close()
    thread.join()


@SIGNALS
def test_during_the_fetch(site: Site, slow_source: SlowSource, number: signal.Signals) -> None:
    site = site.own_recipes(source=slow_source.url)
    running = site.install("toy-top")
    sources = site.prefix / "sources"
    until(lambda: list(sources.glob("toy.c.part-*")) or running.process.poll() is not None, "the download")
    assert slow_source.asked.wait(60)
    assert running.stop(number) == STATUS[number]
    assert SAYS[number] in running.err
    assert ("it resumes" in running.err) == (number != signal.SIGKILL)
    nothing_is_left(site)
    assert not (sources / "toy.c").exists()
    assert site.begun() == []
    slow_source.go_on.set()
    resumes(site, "fetching", ["toy-base", "toy-middle", "toy-top"])
    assert not list(sources.glob("*.part-*"))


def test_a_build_that_ignores_the_signal(site: Site) -> None:
    (site.home / "stubborn").touch()
    site.hold("middle")
    running = site.install("toy-top")
    site.wait_for(running, "middle")
    assert running.stop(signal.SIGTERM) == 143
    assert site.processes() == {}
    assert site.built() == {"toy-base"}


def test_again_at_once_after_a_kill(site: Site) -> None:
    (site.home / "stubborn").touch()
    site.hold("middle")
    running = site.install("toy-top")
    site.wait_for(running, "middle")
    old = site.process("step.sh middle")
    (site.home / "at-middle").unlink()
    assert running.stop(signal.SIGKILL) == -signal.SIGKILL
    again = site.install("toy-top")
    site.wait_for(again, "middle")
    assert not Path(f"/proc/{old}").exists(), "two builds of one module at a time"
    site.let_go()
    again.expect(0)


def test_the_supervisor_is_killed(site: Site) -> None:
    site.hold("middle")
    running = site.install("toy-top")
    site.wait_for(running, "middle")
    os.kill(site.process("supervise.py"), signal.SIGKILL)
    running.expect(5)
    assert "Building toy-middle/1.0 failed in step build." in running.err
    assert "signal 9" in running.err
    nothing_is_left(site)
    resumes(site, "building", ["toy-middle", "toy-top"])


def test_eb_is_killed(site: Site) -> None:
    site.hold("middle")
    running = site.install("toy-top")
    site.wait_for(running, "middle")
    eb = [pid for pid, words in site.processes().items() if "run_eb.py" in words and "supervise.py" not in words]
    os.kill(min(eb), signal.SIGKILL)
    running.expect(5)
    assert "Building toy-middle/1.0 failed in step build." in running.err
    assert "signal 9" in running.err
    nothing_is_left(site)
    resumes(site, "building", ["toy-middle", "toy-top"])


def test_the_session_ends(site: Site) -> None:
    site.hold("middle")
    running = site.install("toy-top")
    site.wait_for(running, "middle")
    assert running.stop(signal.SIGHUP) == 129
    assert "Stopped by SIGHUP." in running.err
    nothing_is_left(site)
