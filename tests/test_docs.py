"""The documentation: it can be built without a warning, its pages are complete, README leads to them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from envkit.diagnose import known
from envkit.planning.stack import stacks

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


@pytest.mark.xdist_group("docs")
class TestSite:
    def test_has_a_page_for_each_rule_and_check(self, site: Path) -> None:
        for rule in known.rules():
            assert rule.id in (site / f"reference/rules/{rule.id}.html").read_text()
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


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"])
def test_links_lead_somewhere(path: str) -> None:
    place = ROOT / path
    links = LINK.findall(place.read_text())
    assert [to for to in links if not (place.parent / to).exists()] == []
    assert links or path == "SECURITY.md"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
