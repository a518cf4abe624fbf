import sys
from pathlib import Path

import pytest

from envkit.errors import HostProblem
from envkit.sources.connection import redact, shown
from envkit.sources.index import whole_url
from envkit.sources.pipconfig import default_index, pip_settings

BARE = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", "HOME": "/nonexistent"}


def test_pip_that_is_told_nothing_uses_its_default_index() -> None:
    settings = pip_settings(BARE)
    assert settings.index_urls == (default_index(),)
    assert settings.find_links == settings.trusted_hosts == ()
    assert settings.timeout_s == 15


def test_variables_win_over_files_and_sections_over_global(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = http://global/simple\nextra-index-url =\n  http://one/simple\n  http://two/simple\n"
        "proxy = user:word@proxy:3128\ncert = /ca.pem\n"
        "[download]\ncert = /download.pem\n[freeze]\ncert = /freeze.pem\n"
    )
    settings = pip_settings(
        BARE
        | {
            "PIP_CONFIG_FILE": str(file),
            "PIP_INDEX_URL": "http://variable/simple",
            "PIP_TRUSTED_HOST": "variable one:8080",
            "PIP_DEFAULT_TIMEOUT": "7",
            "PIP_QUIET": "2",
        }
    )
    assert settings.index_urls == ("http://variable/simple", "http://one/simple", "http://two/simple")
    assert settings.trusted_hosts == ("variable", "one:8080")
    assert settings.proxy == "http://user:word@proxy:3128"
    assert settings.cert == "/download.pem"
    assert settings.timeout_s == 7


def test_no_index_leaves_only_find_links() -> None:
    settings = pip_settings(BARE | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/a http://b/links"})
    assert settings.index_urls == ()
    assert settings.find_links == ("/a", "http://b/links")


def test_broken_pip_configuration_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("no section here\n")
    with pytest.raises(HostProblem) as caught:
        pip_settings(BARE | {"PIP_CONFIG_FILE": str(file)})
    assert "configuration" in caught.value.what
    assert str(file) in caught.value.why


def test_without_any_pip_the_variables_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    monkeypatch.delitem(sys.modules, "pip", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = pip_settings({"PIP_INDEX_URL": "http://variable/simple", "PIP_DEFAULT_TIMEOUT": "3"})
    assert settings.index_urls == ("http://variable/simple",)
    assert settings.timeout_s == 3


@pytest.mark.parametrize(
    ("url", "filename", "expected"),
    [
        ("http://h/base", "a-1.tar.gz", "http://h/base/a-1.tar.gz"),
        ("http://h/base/", "a-1+cpu.whl", "http://h/base/a-1%2Bcpu.whl"),
        ("http://h/base/a-1%2Bcpu.whl", "a-1+cpu.whl", "http://h/base/a-1%2Bcpu.whl"),
        ("http://h/archive/v1.tar.gz", "a-1.tar.gz", "http://h/archive/v1.tar.gz"),
        ("http://h/whl/cpu", "torch.whl", "http://h/whl/cpu/torch.whl"),
    ],
)
def test_url_of_the_file(url: str, filename: str, expected: str) -> None:
    assert whole_url(url, filename) == expected


def test_passwords_are_taken_out() -> None:
    assert shown("https://me:s3cret@host/simple/?token=s3cret#s3cret") == "https://***@host/simple/"
    assert "s3cret" not in redact("see https://me:s3cret@host/x and http://s3cret@host: it failed")
    assert redact("mail me@host about https://host/a@b") == "mail me@host about https://host/a@b"
