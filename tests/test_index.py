import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from envkit.errors import HostProblem
from envkit.sources.connection import Connection
from envkit.sources.index import candidates, whole_url
from envkit.sources.pipconfig import PipSettings, default_index, pip_settings
from envkit.sources.source_cache import Source
from envkit.system.addresses import redact, shown, without_login, without_logins

BARE = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", "HOME": "/proc/nonexistent"}


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
    for odd in ("http://me:s3cret#w@host:3128", "http://me:s3cret?w@host", "http://me:s3cret@[::1", "me:s3cret@host"):
        assert shown(odd).startswith(("http://***@", "***@"))
    quoted = ("{'a': 'me:s3@cret@10.0.0.1'}", '\\"me:s3cret@host\\"')
    hosts = ("me:s3cret@under_score.example:3128", "me:s3cret@sha1.example.org", "me:s3cret@SITE_PROXY:3128")
    word = ("Invalid URL 'http://me:s'3cret@host'",)
    for text in ("proxy=me:s3cret@host:80,x", *quoted, "x?y=me:s3cret@[::1]", *hosts, *word):
        assert "***@" in redact(text) and "cret" not in redact(text)


@pytest.mark.parametrize(
    "password", ["it's3cret", 's3"cret', "my s3cret", "a/s3cret", "12/s3cret", "s3cret@x", "s?3cret"]
)
def test_whatever_is_in_the_password_of_one_address(password: str) -> None:
    """Also where there is no scheme, or no host can be told from it."""
    assert shown(f"http://me:{password}@host/simple?x=1") == "http://***@host/simple"
    assert without_login(f"me:{password}@host:3128") == "***@host:3128"
    assert "cret" not in shown(f"http:/me:{password}@host") + shown(f"HTTPS://me:{password}@[::1")
    assert shown("https://eyJhbGci/s3cret@host/simple") == "https://***@host/simple"
    for plain in (
        "https://Host.org/a@b",
        "docker://REG/x@sha256:9f",
        "https://host/a@b",
        "s3://b/a@c",
        "/folder/a@b",
        "oci://host:5000/x",
        "file:///a@b",
    ):
        assert shown(plain) == plain


@pytest.mark.parametrize(
    "text",
    [
        "ubuntu:22.04@sha256:1234", "docker://host/x:1@sha256:99", "libm.so.6:exp@GLIBC_2.29", "gcc:cuda@12.1",
        "openmpi@main", "memcpy@GLIBC_2.14", "x@@GLIBC_2", "a.so:x@GLIBCXX_3.4.30.", "a.so:b@GLIBC_PRIVATE: undefined",
        "git@github.com:org/repo", "10:22:33 ada@host", "ada@host:/path", "git+ssh://git@github.com/org/repo",
        "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch", "mgs01@tcp1:mgs02@tcp1:/lustre", "mailto:ada@example.org",
    ],
)  # fmt: skip
def test_what_is_no_login_is_shown(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "word", ["http://u:p/s3cret@h", "u:p/s3cret@h", "https://ada:pa s3cret@h/x", "--bundle=https://ada:'s3cret@h/x"]
)
def test_a_word_of_the_command_line_may_be_one_address(word: str) -> None:
    said = without_logins(
        f"File {word!r} does not exist. ada did it, u as well.", ["envkit", word, "ubuntu:2@sha256:9f"]
    )
    assert "s3cret" not in said and said.endswith("ada did it, u as well.")


@pytest.mark.parametrize("part", ["a:b,", "a:", "a@", "a:b@c_", "a:b@cccc.", "://", "a:b@1.1.1.", "x"])
def test_passwords_are_sought_in_a_time_that_grows_as_the_text(part: str) -> None:
    began = time.thread_time()
    redact(part * 200_000)
    assert time.thread_time() - began < 5


PROXIES = ("https_proxy", "http_proxy", "all_proxy")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of the environment's."""
    for name in (*PROXIES, *map(str.upper, PROXIES)):
        monkeypatch.delenv(name, raising=False)


def refused(settings: PipSettings) -> str:
    """Return what is refused of proxies and indexes, in which no value is shown."""
    with pytest.raises(HostProblem) as problem:
        Connection(settings)
    assert "hunter2" not in f"{problem.value.what} {problem.value.why} {problem.value.fix}"
    return problem.value.what


@pytest.mark.parametrize(
    "value",
    [
        "http://ada:hunter2#w@127.0.0.1:9", "http://ada:1#hunter2@127.0.0.1:9", "http://ada:12/hunter2@127.0.0.1:9",
        "hunter2:port", "http://[hunter2", "http://hunter2:99999", "ftp://hunter2", "http://",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_proxy")
def test_a_proxy_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for hosts in ((), ("host",)):
        assert "PIP_PROXY" in refused(PipSettings(proxy=value, trusted_hosts=hosts))
        for name in (*PROXIES, "HTTPS_PROXY"):
            with monkeypatch.context() as changed:
                changed.setenv(name, value)
                assert refused(PipSettings(trusted_hosts=hosts)) == f"{name} is no address of a proxy."


@pytest.mark.parametrize(
    "value",
    [
        "https://ada:hunter2#w@host/simple", "https://ada:1#hunter2@host/simple", "https://ada:1?hunter2@host/simple",
        "http://[hunter2", "http://hunter2:port/simple", "ftp://hunter2/simple",
        "ada:hunter2/b@host", "hunter2@host", "ada:hunter2@host/simple",
    ],
)  # fmt: skip
def test_an_index_that_is_none(value: str) -> None:
    assert "PIP_INDEX_URL" in refused(PipSettings(index_urls=(value,)))
    assert "PIP_EXTRA_INDEX_URL" in refused(PipSettings(index_urls=("https://host/simple", value)))
    assert "PIP_FIND_LINKS" in refused(PipSettings(find_links=("/folder", value)))


@pytest.mark.usefixtures("no_proxy")
def test_an_index_in_a_folder(tmp_path: Path) -> None:
    for value in (str(tmp_path), tmp_path.as_uri()):
        Connection(PipSettings(index_urls=(value,), find_links=(value, "wheels", "~/wheels"))).close()


@pytest.mark.usefixtures("no_proxy")
def test_a_proxy_without_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is one by HTTP, as pip takes it, also for the hosts that are trusted without a certificate."""
    assert pip_settings(BARE | {"PIP_PROXY": "ada:pw@proxy"}).proxy == "http://ada:pw@proxy"
    for value in ("ada:hunter2@proxy:3128", "proxy:3128", "proxy", "http://ada:p%23w@proxy:3128/"):
        monkeypatch.setenv("https_proxy", value)
        Connection(PipSettings(trusted_hosts=("host",))).close()


def test_a_page_with_a_link_that_is_no_address(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text("<a href='http://[::1/a-1.tar.gz'>a</a>")
    source, notes = Source(filename="a-1.tar.gz", sha256="0" * 64, urls=(), project="a", needed_by="x"), list[str]()
    connection = Connection(PipSettings(index_urls=(tmp_path.as_uri(),)), backoff_s=())
    assert not [*candidates(source, connection, notes.append)]
    connection.close()
    assert notes == ["a: a page of an index has a link that is no address: Invalid IPv6 URL"]


def test_a_page_in_a_coding_that_there_is_not() -> None:
    class Odd(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=rot13")
            self.end_headers()
            self.wfile.write(b"<a href='a-1.tar.gz'>a</a>")

        def log_message(self, *_: object) -> None:
            pass

    source, notes = Source(filename="a-1.tar.gz", sha256="0" * 64, urls=(), project="a", needed_by="x"), list[str]()
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = Connection(PipSettings(index_urls=(f"http://127.0.0.1:{server.server_port}",)), backoff_s=())
        assert not [*candidates(source, connection, notes.append)]
        connection.close()
        server.shutdown()
    assert any("is in a coding that there is not" in note for note in notes), notes


@pytest.mark.skipif(find_spec("socksio") is not None, reason="socksio is installed here")
def test_a_socks_proxy_lacks_a_package() -> None:
    assert "is a SOCKS proxy" in refused(PipSettings(proxy="socks5://ada:hunter2@proxy"))
