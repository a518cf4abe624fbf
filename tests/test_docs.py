"""The documentation: it can be built without a warning, its pages are complete, README leads to them."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.compat.complete import MachineParts
from envkit.diagnose import rule
from envkit.easybuild.receipt import ModuleReceipt
from envkit.planning import compatibility
from envkit.planning.stack import stacks
from envkit.verify.report import explained

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[\w-]+)?\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning as an error."""
    folder = tmp_path_factory.mktemp("site")
    words: list[str | Path] = ["-q", "-W", "--keep-going", "-d", folder / "trees", ROOT / "docs", folder / "html"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@pytest.mark.integration
@pytest.mark.xdist_group("docs")
class TestSite:
    def test_has_a_page_for_each_rule_and_check(self, site: Path) -> None:
        for one in rule.rules():
            assert one.id in (site / f"reference/rules/{one.id}.html").read_text()
        for check in explained.explainable():
            assert check in (site / f"reference/checks/{check}.html").read_text()
        said = (site / "reference/checks/world-size.html").read_text()
        assert "world of" in said
        assert "Remedy." in said

    def test_has_every_command_with_its_options(self, site: Path) -> None:
        text = (site / "reference/commands.html").read_text()
        for words in ("envkit install", "envkit eessi prefetch", "envkit job slurm", "--accept-eula", "--follow"):
            assert words in text

    def test_has_every_stack(self, site: Path) -> None:
        text = (site / "reference/stacks.html").read_text()
        assert all(stack.name in text for stack in stacks())

    def test_leads_to_each_of_its_pages(self, site: Path) -> None:
        """From the first page, by links."""
        seen: set[Path] = set()
        todo = [site / "index.html"]
        while todo:
            page = todo.pop().resolve()
            if page not in seen and page.is_file():
                seen.add(page)
                text = page.read_text()
                todo += [page.parent / to for to in re.findall(r'href="([^"#:]+\.html)', text)]
        assert {path for path in site.rglob("*.html") if path.parent.name != "_static"} <= seen


PAGES = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", *PAGES])
def test_links_lead_somewhere(path: str) -> None:
    """To files that are kept: those of the reference are written when the site is built, and not on a code host."""
    place = ROOT / path
    links = LINK.findall(place.read_text())
    assert [to for to in links if not (place.parent / to).exists() or to.startswith("reference/")] == []


SAMPLE = re.compile(r"^\$ (envkit (?:compat|list|job) .*?)(; echo \$\?)?\n((?:(?!\$ |```).*\n)+)", re.MULTILINE)
BARE = re.compile(r"^\$ (envkit list)()\n((?:(?!\$ |```).*\n)+)", re.MULTILINE)


def samples(page: str) -> list[tuple[str, bool, str]]:
    """The commands of a page that are shown with what they print, and whether their status is printed, too."""
    text = (ROOT / "docs" / page).read_text()
    return [(found[1], bool(found[2]), found[3]) for one in (SAMPLE, BARE) for found in one.finditer(text)]


def first_file(page: str, name: str) -> str:
    """The first file in TOML of a page, as it is shown."""
    found = re.search(rf"```toml\n(# [^\n]*{name}\n.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert found
    return found[1]


def is_printed(sample: str, printed: str) -> bool:
    """Whether a sample is what is printed, but for lines that ``...`` stands for."""
    parts = [re.escape(part.strip("\n")) for part in re.split(r"^\.\.\.$", sample, flags=re.MULTILINE)]
    return re.fullmatch(r"\n*(?:.*\n)*?".join(parts), printed.strip("\n")) is not None


@pytest.mark.parametrize(("words", "with_status", "sample"), samples("compat.md"))
def test_samples_of_compat(
    words: str, with_status: bool, sample: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine that they were taken from."""
    parts = {"machine": "x86_64", "python": "3.11.7", "gcc": "12.2.0", "openmpi": "4.1.4"}
    monkeypatch.setattr(compatibility, "here", lambda _machine: MachineParts(accelerator="cpu", parts=parts))
    status = run(shlex.split(words)[1:])
    printed = capsys.readouterr().out + (f"{status}\n" if with_status else "")
    assert is_printed(sample, printed), f"{words} prints:\n{printed}"


@pytest.mark.parametrize(
    ("page", "path", "wrong"),
    [
        ("configuration.md", ".config/envkit/config.toml", ("account", "acount")),
        ("sites.md", "ours.toml", ("binds", "bind")),
    ],
)
def test_samples_of_mistakes(
    page: str,
    path: str,
    wrong: tuple[str, str],
    tmp_path: Path,
    install: Callable[..., ModuleReceipt],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the first file of the page, with one word misspelt."""
    [(words, with_status, sample)] = samples(page)
    install("toy", horovod="/h")
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(first_file(page, file.name.replace("ours", "site")).replace(*wrong, 1))
    assert run(shlex.split(words)[1:]) == 2
    printed = capsys.readouterr().err.replace(str(tmp_path), "/home/ada") + ("2\n" if with_status else "")
    assert is_printed(sample, printed), printed


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
