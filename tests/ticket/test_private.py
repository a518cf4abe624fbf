"""Nothing private is in a report: made-up secrets, users and hosts are looked for in each of its forms."""

import html
import json
import random
import shlex
import string
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from envkit.ticket import forms
from envkit.ticket.gather import Part, Ticket, without
from envkit.ticket.private import Private, unfolded

from .made_up_logs import MadeUpLog

SPECIAL = "!#$%^*()-_=+[]{};:,.?/|~@&<>'\"\\ üñ"
VARIABLES = (
    "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "MY_COOKIE", "APPTAINER_DOCKER_PASSWORD",
    "SLURM_AUTH", "AZURE_CREDENTIALS", "my_secret",
)  # fmt: skip
EVERYDAY = Path(__file__).parents[1] / "everyday.toml"


class MadeUp:
    """A session with secrets, a user and hosts, and lines of logs that have them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.env = {name: self.secret() for name in self.random.sample(VARIABLES, 4)}
        user, password = self.word(7), self.secret()
        at = f"https://{quote(user, safe='')}:{quote(password, safe='')}@{self.word(8)}.{self.word(6)}.de:3128"
        self.env |= {"https_proxy": at, "PIP_INDEX_URL": f"{at}/simple?token={self.word(12)}"}
        self.secrets = [*(value for name, value in self.env.items() if name in VARIABLES), user, password]
        self.user, self.other, self.host = self.word(8), self.word(7), f"{self.word(5)}7"
        self.unknown = ["".join(self.random.choices(string.ascii_letters + string.digits, k=20)) for _ in range(9)]
        self.env |= {"USER": self.user, "HOME": f"/home/{self.user}", "SLURM_JOB_NODELIST": self.host}

    def word(self, length: int) -> str:
        return "".join(self.random.choices(string.ascii_lowercase, k=length))

    def secret(self) -> str:
        odd = self.random.choice(("", SPECIAL))
        chars = self.random.choices(string.ascii_letters + string.digits + odd, k=self.random.randint(8, 40))
        return "".join(chars).strip().ljust(8, "x")

    def lines(self) -> Iterator[str]:
        for name, value in self.env.items():
            yield from (f"{name}={value}", f"export {name}={shlex.quote(value)}", json.dumps({name: value}))
            yield from (repr({name: value}), f"error: the value {value} is not right")
        for value in self.secrets:
            yield f"x{value}y"
            yield f"{'z' * self.random.randint(250, 290)}{value}"[:300]  # a line that was cut
        one = self.unknown
        yield from (
            f"Authorization: Bearer {one[0]}",
            f'curl -H "Authorization: token {one[1]}" https://index.example.org',
        )
        yield from (
            f"git clone https://{self.other}:{one[2]}@git.site.de/x",
            f"mysql --password={one[3]} --token {one[4]}",
        )
        yield from (
            json.dumps({"api_key": one[5]}),
            f"ghp_{one[6]}",
            f"PGPASSWORD='{one[7]}'",
            f"https://u:{one[8]}"[:22],
        )
        yield from ("-----BEGIN RSA PRIVATE KEY-----", f"MII{one[8]}", "-----END RSA PRIVATE KEY-----")
        yield from (
            f"/home/{self.other}/x",
            f"/users/{self.other}",
            f"{self.other}@{self.host}: ",
            f"'/home/{self.user}'",
        )
        yield from (f"srun: error: {self.host}: task 1", f"{self.user}@{self.host}.site.de", f"[{self.host}:123] x")


@pytest.mark.parametrize("seed", range(40))
def test_no_secret_no_user_no_host_is_in_any_form(seed: int) -> None:
    made = MadeUp(seed)
    lines = list(made.lines())
    private = Private(made.env)
    private.learn("\n".join(lines))
    told = Part(
        id="logs",
        title="Logs",
        summary=lines[0],
        text="\n".join(lines),
        data={"around": lines, "env": made.env, "same": dict.fromkeys(lines, 1)},
        problem=lines[-1],
    )
    ticket = Ticket(made="", environment="", parts=(without(told, private),))
    for text in (forms.to_json(ticket), html.unescape(forms.to_html(ticket)), forms.to_markdown(ticket)):
        for value in (*made.secrets, *made.unknown[:8], made.user, made.other, made.host):
            for form in {value, quote(value, safe=""), json.dumps(value)[1:-1], repr(value)[1:-1]}:
                assert form not in text and form not in text.replace("\n", " "), form


@pytest.mark.parametrize("seed", range(40))
def test_who_runs_a_job_who_pays_and_where_is_in_no_log(seed: int) -> None:
    log = MadeUpLog(seed)
    private = Private({"USER": "root", "HOME": "/root"})
    private.learn(log.text)
    told = private.out_of(log.text)
    # A domain is known by a host of it.
    assert not [one for one in log.left(told) if one[0] != "domain"], told
    assert set(log.stay) <= set(told.splitlines())
    assert private.out_of(told) == told


def test_the_same_host_is_the_same_everywhere() -> None:
    private = Private({"SLURM_JOB_NODELIST": "gpu[001-002],login1"})
    private.learn("srun: error: cn7.site.de: task 1: Exited\n[cn8:12] x")
    first, second, third = (
        private.out_of("gpu001 gpu002 cn7"),
        private.out_of("gpu002 cn7"),
        private.out_of("cn7.site.de"),
    )
    assert first.split()[1:] == second.split() and second.split()[1] == third
    assert len(set(first.split())) == 3
    assert private.out_of("cn80 xcn8 cn8x") == "cn80 xcn8 cn8x"
    assert list(unfolded("n[08-10,12]")) == ["n08", "n09", "n10", "n12"]
    assert len(list(unfolded("n[1-99999999]"))) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-curand-cu12==10.3.5.147, version 10.3.2.106",
        "docker pull ubuntu@sha256:" + "ab" * 32,
        "docker://ubuntu:22.04 https://github.com/horovod/horovod",
        "max_tokens 2048; the root of the tree; rank 0 on host",
        "libmpi.so.40 of Open MPI 4.1.4 at /usr/lib/x86_64-linux-gnu",
        "SHA-256 " + "0123456789abcdef" * 4,
    ],
)
def test_what_is_not_private_stays(text: str) -> None:
    assert Private({"MPI_TOKEN_ENABLED": "true", "SSH_AUTH_SOCK": "/tmp/x", "USER": "root"}).out_of(text) == text


def test_everyday_logs_are_still_read_the_same() -> None:
    from envkit.diagnose import first_cause

    for one in tomllib.loads(EVERYDAY.read_text())["log"]:
        private = Private({})
        private.learn(one["log"])
        found = first_cause([private.out_of(one["log"]).encode()])
        assert found is not None and found.rule.id == one["rule"], one["log"]


def test_the_time_grows_as_the_text_does() -> None:
    private = Private({"A_TOKEN": "s3cr3tvalue"})
    units = (
        "a", "password=", "/home/", "x@", "10.0.0.", "http://a", "-----BEGIN PRIVATE KEY-----\n", "fe80:", "aa:", " ",
        "authorization: ", "eyJabcdefgh.", "A" * 70 + "\n", "--token ", "[n1:", "s3cr3t", "secret_", "'\"",
    )  # fmt: skip
    for unit in units:
        spent = []
        for size in (15_000, 60_000):
            text = (unit * size)[:size]
            began = time.thread_time()
            private.out_of(text)
            private.learn(text)
            spent.append(time.thread_time() - began)
        assert spent[1] < 0.05 + 10 * spent[0], unit
