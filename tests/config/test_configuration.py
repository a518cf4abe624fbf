"""Which file counts for what, and what is said of one with a mistake in it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from envkit.cli import envkit, run
from envkit.commands import verify
from envkit.commands.job import job
from envkit.config import configuration, report
from envkit.config.keys import KEYS, variables
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import prefix as place
from envkit.environments import trust
from envkit.environments.prefix import Prefix
from envkit.errors import ConfigInvalid, EnvironmentMissing
from envkit.methods import installed
from envkit.report.paper import Paper

from ..verify.test_report import report as verified
from . import schema

Output = pytest.CaptureFixture[str]
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the file of a level; no other file and no variable counts."""
    home, project = tmp_path / "home", tmp_path / "home" / "project" / "below"
    project.mkdir(parents=True)
    paths = {
        "project": project.parent / "envkit.toml",
        "user": home / ".config/envkit/config.toml",
        "site": tmp_path / "installed/etc/envkit/config.toml",
        "system": tmp_path / "etc/envkit/config.toml",
    }
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(configuration, "SYSTEM", paths["system"])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "installed"))
    for name in ("XDG_CONFIG_HOME", *(one for key in KEYS for one in variables(key))):
        monkeypatch.delenv(name, raising=False)

    def make(level: str, text: str) -> Path:
        paths[level].parent.mkdir(parents=True, exist_ok=True)
        paths[level].write_text(text)
        return paths[level]

    return make


def test_the_nearest_file_counts_and_a_variable_before_all(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, level in enumerate(("system", "site", "user", "project"), start=1):
        path = write(level, f"\njobs = {number}\n")
        found = configuration.read().values["jobs"]
        assert (found.value, found.level, found.where) == (number, level, f"{path}:2")
    monkeypatch.setenv("ENVKIT_JOBS", "9")
    found = configuration.read().values["jobs"]
    assert (found.value, found.level, found.where) == (9, "variable", "ENVKIT_JOBS")
    monkeypatch.setenv("ENVKIT_JOBS", "")
    assert configuration.read().get("jobs") == 4


def test_each_level_sets_what_the_nearer_ones_do_not(write: Write) -> None:
    write("system", 'method = "eessi"\njobs = 2\n[job]\naccount = "a"\n')
    write("user", 'jobs = 3\n[job]\npartition = "p"\n')
    found = configuration.read()
    assert {key: one.value for key, one in found.values.items()} == {
        "method": "eessi", "jobs": 3, "job.account": "a", "job.partition": "p",
    }  # fmt: skip


class TestProject:
    def test_is_sought_up_to_the_root_of_the_repository(self, write: Write, tmp_path: Path) -> None:
        path = write("project", "jobs = 1")
        below = Path.cwd() / "deep"
        below.mkdir()
        assert configuration.project(below, os.environ) == path
        (Path.cwd() / ".git").mkdir()
        assert configuration.project(below, os.environ) is None
        assert configuration.project(path.parent, os.environ) == path

    def test_is_sought_up_to_the_home(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "envkit.toml").write_text("jobs = 1")
        assert configuration.project(None, os.environ) is None
        assert configuration.project(tmp_path, os.environ) == tmp_path / "envkit.toml"

    @pytest.mark.parametrize(
        "line", ['prefix = "/x"', 'trust = ["mallory"]', 'load = ["m"]', 'site = "/x/y.toml"', 'message = "Call me"']
    )
    def test_does_not_say_what_is_run(self, write: Write, line: str) -> None:
        path = write("project", f"{line}\n")
        with pytest.raises(ConfigInvalid) as error:
            configuration.required()
        key = line.partition(" ")[0]
        assert f"{path}:1: the file of a project may not set '{key}'" in error.value.why
        assert error.value.exit_code == 2

    @pytest.mark.parametrize("key", ["jobs", "ranks", "job.ranks-per-node", "job.cpus-per-rank"])
    def test_has_no_million_of_anything_started(self, write: Write, key: str) -> None:
        path = write("project", f"\n{key} = 1000000\n")
        [mistake] = configuration.read().mistakes
        assert re.fullmatch(
            rf"{path}:2: '{key}': expected a whole number from 1 to (1024|4096), found 1000000.", mistake
        )
        assert configuration.read().get(key) is None

    def test_names_no_folder_as_an_environment(self, write: Write) -> None:
        path = write("project", 'environment = "/project/env"')
        assert configuration.read().mistakes == (
            f"{path}:1: 'environment': the file of a project may name only an installed environment, not a folder.",
        )

    def test_a_folder_of_its_own_is_not_taken_for_what_it_names(self, write: Write, prefix: Prefix) -> None:
        write("project", 'environment = "mine"')
        (Path.cwd() / "mine").mkdir()
        (Path.cwd() / "mine" / "envkit.json").write_text("{}")
        with pytest.raises(EnvironmentMissing, match="'mine'"):
            installed.find(prefix, None)

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
    def test_of_somebody_else_is_left_aside(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write("project", "jobs = 4")
        os.chown(path, 12345, -1)
        found = configuration.read()
        assert not found.values and not found.mistakes
        assert (found.files[0].state, *found.files[0].why) == (
            "refused", f"{path}: It belongs to 12345, who may not say what counts for you.",
        )  # fmt: skip
        monkeypatch.setenv("ENVKIT_TRUST", "12345")
        assert configuration.read().get("jobs") == 4


def test_a_file_of_the_user_that_everybody_can_change_is_a_mistake(write: Write) -> None:
    write("user", "jobs = 4").chmod(0o666)
    [mistake] = configuration.read().mistakes
    assert mistake.endswith("Everybody may write to it, who may not say what counts for you.")
    assert configuration.read().get("jobs") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\njob = 3", ":2: 'job' is a table: write [job], and its keys below."),
        ("[jobs]\ntime = 3", ":1: there is no table [jobs]; there is [cache], [job]."),
        ("prefx = 3", ":1: there is no key 'prefx'. Did you mean 'prefix'?"),
        ("acount = 3", ":1: there is no key 'acount'. Did you mean 'account' in [job]?"),
        ("[job]\n\ntim = 3", ":3: there is no key 'job.tim'. Did you mean 'time' in [job]?"),
        ("xyzzy = 3", ":1: there is no key 'xyzzy'."),
        ("jobs = 0", ":1: 'jobs': expected a whole number from 1 to 1024, found 0."),
        ("jobs = true", ":1: 'jobs': expected a whole number from 1 to 1024, found true."),
        ('# jobs = 1\nmethod = "x"', ":2: 'method': expected one of auto, easybuild, apptainer, eessi"),
        ('prefix = "here"', ":1: 'prefix': expected an absolute path"),
        ("job.nodes = 'two'", ":1: 'job.nodes': expected a whole number"),
        ('[job]\nnodes = "2"', ":2: 'job.nodes': expected a whole number from 1 to 1000000, found '2'."),
        pytest.param(f'[job]\ntime = "{"9" * 5000}"', ":2: 'job.time': expected minutes", id="time"),
        pytest.param(f'[job]\ngpus-per-node = "{"9" * 5000}"', ":2: 'job.gpus-per-node': expected a number", id="gpus"),
        ('load = "X"', ":1: 'load': expected a list of modules, such as [\"PrgEnv-gnu\"], found 'X'."),
        ('trust = "me"', ":1: 'trust': expected a list of users"),
        ("job = {nodes = 'two'}", ":1: 'job.nodes': expected a whole number"),
        ('[job]\naccount = "a\\n#SBATCH --wrap=x"', ":2: 'job.account': expected the name of an account"),
        ('[job]\npartition = "a b"', ":2: 'job.partition': expected the name of a partition"),
        ("jobs = 3\njobs = 4", ":2: this is not TOML: cannot overwrite a value."),
        ("jobs = ", ": this is not TOML: invalid value."),
        ("a = " + "[" * 30_000, "this is not TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_the_file_is_not_used(write: Write, text: str, said: str) -> None:
    path = write("user", f"{text}\n")
    found = configuration.read()
    [mistake] = found.mistakes
    assert mistake.startswith(str(path)) and said in mistake
    assert not found.values


@pytest.mark.parametrize("words", ["list --installed", "config"])
def test_what_is_likely_not_to_be_meant_is_told_in_a_line(
    write: Write, words: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("user", '\ntrust = ["nobody-of-that-name", "@nor-a-group", "root"]\n')
    for name, value in {"ENVKIT_PREFX": "/x", "ENVKIT_JOB_ACOUNT": "y", "ENVKIT_TEST_PREFIX": "/z"}.items():
        monkeypatch.setenv(name, value)
    assert run(words.split()) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("envkit: ")] == [
        "envkit: ENVKIT_JOB_ACOUNT is no variable of envkit's. Did you mean ENVKIT_JOB_ACCOUNT?",
        "envkit: ENVKIT_PREFX is no variable of envkit's. Did you mean ENVKIT_PREFIX?",
        f"envkit: {path}:2: 'trust': there is no user 'nobody-of-that-name' here, so nobody is trusted by it.",
        f"envkit: {path}:2: 'trust': there is no group 'nor-a-group' here, so nobody is trusted by it.",
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_of_ranks_the_first_tells_it(rank: int, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    started = {"ENVKIT_PREFX": "/x", "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert run(["list", "--installed"]) == 0
    assert ("ENVKIT_PREFX is no variable" in capsys.readouterr().err) == (rank == 0)


def test_variables_have_numbers_and_lists_as_text(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("user", "jobs = 3")
    for name, value in {"ENVKIT_JOBS": "4", "ENVKIT_LOAD": "a/1 b,c", "ENVKIT_JOB_NODES": "2"}.items():
        monkeypatch.setenv(name, value)
    found = configuration.read()
    assert [found.get(key) for key in ("jobs", "load", "job.nodes")] == [4, ("a/1", "b", "c"), 2]


def test_bytes_that_are_no_text(write: Write) -> None:
    path = write("user", "")
    path.write_bytes(b"jobs = 1\nprefix = '\xff'\n")
    assert configuration.read().mistakes == (f"{path}:2: this is no text in UTF-8.",)


def test_every_mistake_is_told_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("user", "a = 1\nb = 2\n")
    write("system", "c = 1\n")
    monkeypatch.setenv("ENVKIT_RANKS", "two")
    found = configuration.read().mistakes
    assert len(found) == 4
    assert found[0] == "ENVKIT_RANKS: expected a whole number from 1 to 4096, found 'two'."


COMMANDS = ["list", "run toy -- true", "verify toy", "install --dry-run", "job slurm toy --nodes 1 -- true", "remove x"]


@pytest.mark.parametrize("words", COMMANDS)
def test_nothing_begins_with_a_mistake(write: Write, words: str, capsys: Output, tmp_path: Path) -> None:
    write("user", f'prefix = "{tmp_path}/p"\nmethd = "eessi"\n')
    assert run(words.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("envkit: The configuration has a mistake in it.\n") and not said.out
    assert "config.toml:2: there is no key 'methd'. Did you mean 'method'?" in said.err
    assert not (tmp_path / "p").exists()


def test_what_a_shell_evaluates_fails_with_a_mistake(write: Write, capsys: Output) -> None:
    write("user", "x = 1")
    assert run(["activate"]) == 2
    assert capsys.readouterr().out == "false\n"


@pytest.mark.parametrize("words", ["list --help", "job slurm -h", "diagnose --list", "example", "compat --help"])
def test_help_and_what_nothing_is_configured_for_go_on(write: Write, words: str) -> None:
    write("user", "x = 1")
    assert run(words.split()) == 0


def parameters(command: click.Command, words: str) -> dict[str, click.Parameter]:
    """The parameters of a command by their names."""
    for word in words.split():
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), word)
        assert below
        command = below
    return {str(one.name): one for one in command.params}


@pytest.mark.parametrize("key", [key for key in KEYS if KEYS[key].commands])
def test_every_key_is_an_option_of_its_commands(key: str) -> None:
    for words in KEYS[key].commands:
        of_one = [parameters(envkit, f"job {name}") for name in job.commands] if words == "job" else []
        found = [one[KEYS[key].option] for one in of_one or [parameters(envkit, words)] if KEYS[key].option in one]
        assert found
        option = found[0]
        if isinstance(option.type, click.Choice):
            choices = [one for one in option.type.choices if one != "auto"]
            assert KEYS[key].expected.replace("auto, ", "") == f"one of {', '.join(choices)}"


def test_no_command_with_such_an_option_is_left_out() -> None:
    """But those for which it is another thing, which would be no help, or which are of an image alone."""
    other = {"method": {"export image"}, "framework": {"verify"}, "mpi": {"job"},
             "nodes": {"verify", "run"}, "ranks_per_node": {"verify"}, "gpus_per_node": {"install", "doctor"},
             "cpus_per_rank": {"verify"}, "time": {"verify", "install", "doctor"}}  # fmt: skip
    context = click.Context(envkit)
    below = {"job": [f"job {one}" for one in job.commands], "eessi": []}
    below["export"] = ["export image", "export patches"]
    every = [name for one in envkit.list_commands(context) for name in below.get(one, [one])]
    for key in KEYS.values():
        having = {words for words in every if key.option in parameters(envkit, words)} if key.option else set()
        having = {"job" if words.startswith("job ") else words for words in having}
        assert having - other.get(key.option, set()) == set(key.commands), key.option


class TestWhatCounts:
    def test_the_command_line_before_all(self, write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        write("user", f'prefix = "{tmp_path}/file"')
        assert place.locate(None).root == tmp_path / "file"
        monkeypatch.setenv("EBU_USER_PREFIX", str(tmp_path / "ebu"))
        assert place.locate(None).root == tmp_path / "ebu"
        monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "variable"))
        assert place.locate(None).root == tmp_path / "variable"
        assert place.locate(str(tmp_path / "option")).root == tmp_path / "option"

    def test_who_is_trusted(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        write("system", 'trust = ["software", "@proj7"]')
        assert trust.words(os.environ) == ["software", "@proj7"]
        monkeypatch.setenv("ENVKIT_TRUST", "ada, @p")
        assert trust.words(os.environ) == ["ada", "@p"]

    def test_the_environment_where_none_is_named(
        self, write: Write, prefix: Prefix, install: Callable[..., ModuleReceipt], capsys: Output
    ) -> None:
        install("toy-cpu")
        install("other-cpu", "Python/system", "Other/1.0")
        assert run(["show", "--prefix", str(prefix.root)]) == 6
        assert 'environment = "other-cpu"' in capsys.readouterr().err
        for level in ("user", "project"):
            write(level, 'environment = "toy"')
            assert installed.find(prefix, None).name == "toy-cpu"
        assert installed.find(prefix, "other-cpu").name == "other-cpu"
        path = write("project", 'environment = "gone"')
        assert run(["show", "--prefix", str(prefix.root)]) == 6
        assert f"gone is meant where none is named: {path}:1." in capsys.readouterr().err

    def test_the_shape_of_a_job(
        self, write: Write, prefix: Prefix, install: Callable[..., ModuleReceipt], capsys: Output
    ) -> None:
        install("toy-cpu")
        write("user", '[job]\nnodes = 3\nranks-per-node = 2\ntime = "1:00:00"\naccount = "a"\npartition = "p"\n')
        write("project", "[job]\nnodes = 4\n")
        words = ["job", "slurm", "--no-verify", "--prefix", str(prefix.root), "--time", "5", "--", "true"]
        assert run(words) == 0
        said = capsys.readouterr().out.splitlines()
        wanted = ("nodes=4", "ntasks-per-node=2", "time=00:05:00", "account=a", "partition=p")
        assert {f"#SBATCH --{word}" for word in wanted} <= {*said}
        assert run(["doctor", "--submit", "--help"]) == 0

    def test_options_of_a_job_are_not_asked_of_who_has_none(
        self, write: Write, prefix: Prefix, install: Callable[..., ModuleReceipt], capsys: Output
    ) -> None:
        install("toy-cpu")
        write("user", '[job]\naccount = "a"\ngpus-per-node = 4\n')
        assert run(["verify", "toy-cpu", "--prefix", str(prefix.root)]) == 2
        assert "toy-cpu has no Horovod" in capsys.readouterr().err
        assert run(["verify", "toy-cpu", "--account", "b", "--prefix", str(prefix.root)]) == 2
        assert "--account goes with --submit." in capsys.readouterr().err

    @pytest.mark.integration
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('method = "eessi"', ["pytorch-2.13-cpu"]),
            ('framework = "tensorflow"', ["pytorch"]),
            ('framework = "tensorflow"\naccelerator = "cuda"', ["pytorch-2.13-cpu"]),
            ('mpi = "openmpi"', ["pytorch-2.13-cpu-image"]),
        ],
    )
    def test_gives_way_to_the_stack_that_is_named(
        self, write: Write, prefix: Prefix, text: str, words: list[str], capsys: Output
    ) -> None:
        write("user", text)
        run(["install", *words, "--dry-run", "--offline", "--prefix", str(prefix.root)])
        said = capsys.readouterr()
        assert "contradict" not in said.err and "goes with --method" not in said.err
        assert words[0] in said.out + said.err

    def test_counts_where_no_stack_is_named(self, write: Write, prefix: Prefix, capsys: Output) -> None:
        write("user", 'method = "apptainer"\nframework = "tensorflow"')
        run(["install", "--dry-run", "--offline", "--prefix", str(prefix.root)])
        assert "tensorflow-2.21-cpu-image" in "".join(capsys.readouterr())


class TestCommand:
    def test_shows_each_key_and_where_it_is_from(self, write: Write, capsys: Output, tmp_path: Path) -> None:
        path = write("user", f'prefix = "{tmp_path}"\ntrust = ["a", "@b"]\n')
        assert run(["config", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        found = {one.pop("key"): one for one in said["settings"]}
        assert list(found) == list(KEYS)
        assert found["trust"]["value"] == ["a", "@b"]
        assert (found["trust"]["level"], found["trust"]["place"], found["trust"]["line"]) == ("user", str(path), 2)
        assert (found["jobs"]["value"], found["jobs"]["level"]) == (None, "default")
        assert run(["config"]) == 0
        assert "trust               a, @b" in capsys.readouterr().out

    def test_fits_a_terminal(self, write: Write) -> None:
        """Paths stand below the table, each in one piece as far as that fits."""
        path = write("user", 'prefix = "/p"\n\ntrust = ["root"]\n')
        lines = report.of_keys(report.report(configuration.read()), Paper(width=80))
        assert [line.split("  ")[-1].strip() for line in lines if line.startswith(("prefix ", "trust "))] == [
            "user, line 1",
            "user, line 3",
        ]
        assert all(len(line) <= 80 for line in lines)
        assert str(path) in "".join(line.strip().removeprefix("user").strip() for line in lines[len(KEYS) + 2 :])
        [wide] = [
            line for line in report.of_keys(report.report(configuration.read()), Paper(width=300)) if "prefix" in line
        ]
        assert wide.endswith(f"user: {path}:1")

    def test_names_every_file(self, write: Write, capsys: Output) -> None:
        path = write("project", "jobs = 1")
        assert run(["config", "--path"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
        assert rows[0][::2] == ["project", "used"]
        assert rows[0][1] == str(path)
        assert [row[0] for row in rows] == ["project", "user", "site", "system"]
        assert {row[-1] for row in rows[1:]} == {"absent"}
        assert run(["config", "--path", "--json"]) == 2

    def test_tells_of_a_mistake_and_shows_the_rest(self, write: Write, capsys: Output) -> None:
        write("user", "jobs = 'x'")
        write("system", "ranks = 3")
        for words in ([], ["--path"], ["--json"]):
            assert run(["config", *words]) == 2
            said = capsys.readouterr()
            assert "'jobs': expected a whole number" in said.out + said.err
        assert "system" in said.out

    @pytest.mark.xdist_group("schemas")
    def test_is_what_its_schema_says(self, write: Write, capsys: Output) -> None:
        from jsonschema import Draft202012Validator

        published = json.loads(schema.PATH.read_bytes())
        assert schema.PATH.read_bytes() == schema.schema()
        Draft202012Validator.check_schema(published)
        for text in ("", "jobs = 3", "jobs = 'x'", 'trust = ["a"]\n[job]\ntime = 30'):
            write("user", text)
            run(["config", "--json"])
            Draft202012Validator(published).validate(json.loads(capsys.readouterr().out))


def test_the_doctor_tells_of_a_mistake(write: Write) -> None:
    from envkit.doctor import questions
    from envkit.doctor.facts import Facts
    from envkit.doctor.rules import judge

    path = write("user", "x = 1")
    found = judge(Facts(user="u", uid=1, configuration=questions.configuration(os.environ)))
    [note] = [one for one in found.notes if one.id == "configuration"]
    assert f"{path}:1: there is no key 'x'." in note.what


def test_what_is_listed_in_the_report_are_the_levels() -> None:
    levels = [str(level) for level in report.Level]
    assert levels == ["variable", "project", "user", "site", "system", "default"]


def test_every_key_has_a_variable_of_its_own() -> None:
    names: list[Any] = [name for key in KEYS for name in variables(key)]
    assert len(names) == len(set(names))
    assert {"ENVKIT_PREFIX", "ENVKIT_TRUST", "ENVKIT_JOB_RANKS_PER_NODE"} <= {*names}


def test_ranks_in_all_are_spread_over_the_nodes_of_a_job(
    write: Write, prefix: Prefix, install: Callable[..., ModuleReceipt], capsys: Output
) -> None:
    install("toy-cpu")
    words = ["job", "slurm", "--no-verify", "--prefix", str(prefix.root), "--nodes", "2", "-n"]
    assert run([*words, "6", "--", "true"]) == 0
    assert "#SBATCH --ntasks-per-node=3" in capsys.readouterr().out
    assert run([*words, "5", "--", "true"]) == 2
    assert "5 ranks are not as many on each of 2 nodes" in capsys.readouterr().err
    assert run([*words, "6", "--ranks-per-node", "3", "--", "true"]) == 2
    assert "Give one of -n and --ranks-per-node." in capsys.readouterr().err
    write("user", "[job]\nranks-per-node = 8\n")  # gives way
    assert run([*words, "6", "--", "true"]) == 0
    assert "#SBATCH --ntasks-per-node=3" in capsys.readouterr().out


def test_a_folder_of_packages_is_the_environment_that_is_meant(
    write: Write, prefix: Prefix, install: Callable[..., ModuleReceipt], tmp_path: Path
) -> None:
    made = install("toy-cpu")
    folder = tmp_path / "mine"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    record = {"folder": str(folder), "name": made.name, "tree": made.tree, "fixed": {}, "absent": [], "envkit": "0"}
    (folder / "envkit.json").write_text(json.dumps(record))
    write("user", f'environment = "{folder}"')
    assert installed.find(prefix, None).called == str(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_what_a_strangers_file_of_the_project_names_is_not_entered(
    write: Write, prefix: Prefix, install: Callable[..., ModuleReceipt]
) -> None:
    install("toy-cpu")
    install("other-cpu", "Python/system", "Other/1.0")
    os.chown(write("project", 'environment = "toy-cpu"'), 12345, -1)
    with pytest.raises(EnvironmentMissing, match="Which environment"):
        installed.find(prefix, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n".join(f"k{number} = 1" for number in range(3000)), "and perhaps more."),
        (".".join(["a"] * 20_000) + " = 1", "a line has more than 200 dots in it."),
        (f"{'k' * 5000} = 1", "there is no key 'kkkk"),
        (f"ranks = 0x{'f' * 5000}", "found a number of very many digits."),
        (f"ranks = {'[' * 400}{']' * 400}", "brackets are nested more than 20 deep."),
        (f"jobs = 1\nranks = {'{a = ' * 300}1{'}' * 300}", "config.toml:2: brackets are nested more than 20 deep."),
        ("prefix = '/[[[[[[[[[[[[[[[[[[[[[[[[[[['\nranks = true", "config.toml:2: 'ranks': expected"),
        ("ranks = 9223372036854775808999", "expected a whole number from 1 to 4096"),
    ],
)
def test_a_file_that_was_made_to_take_long_is_told_shortly(write: Write, text: str, said: str) -> None:
    write("user", text)
    mistakes = configuration.read().mistakes
    assert said in mistakes[-1] and len(mistakes) <= 11


def test_a_file_of_a_project_that_is_too_large_is_left_aside(write: Write) -> None:
    write("project", "# " + "x" * 70_000)
    assert configuration.read().mistakes == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
def test_a_link_of_somebody_else_is_left_aside(write: Write, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("jobs = 3")
    path = write("project", "")
    path.unlink()
    path.symlink_to(own)
    assert configuration.read().values["jobs"].value == 3
    os.chown(path, 65534, 65534, follow_symlinks=False)
    assert "jobs" not in configuration.read().values


SECRET = "h'unt/er2"


def test_a_cache_and_a_key_may_have_blanks_in_their_paths(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("user", '[cache]\nfrom = ["/srv/a b", "oci://c/d"]\nkeys = ["~/my keys/k.pub"]')
    assert configuration.read().get("cache.from") == ("/srv/a b", "oci://c/d")
    assert configuration.read().get("cache.keys") == ("~/my keys/k.pub",)
    monkeypatch.setenv("ENVKIT_CACHE_FROM", " /srv/c d, s3://e/f,")
    assert configuration.read().get("cache.from") == ("/srv/c d", "s3://e/f")


@pytest.mark.parametrize("value", ["/srv/a\\n", "https://c/a b", "srv/a", "/srv/a "])
def test_a_cache_that_is_neither_a_path_nor_a_url(write: Write, value: str) -> None:
    write("user", f'[cache]\nfrom = ["{value}"]')
    [mistake] = configuration.read().mistakes
    assert "a list of absolute paths and URLs" in mistake


@pytest.mark.parametrize("words", ["config", "config --json"])
def test_no_password_of_a_cache_is_shown(
    write: Write, words: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"http://ada:{SECRET}@c.example/x?sig=hunter2"
    write("user", f'[cache]\nfrom = ["/srv/a#b", "{address}"]')
    assert run(words.split()) == 0
    assert "http://***@c.example/x" in (told := capsys.readouterr().out) and "er2" not in told and "/srv/a#b" in told
    monkeypatch.setenv("ENVKIT_CACHE_FROM", address)
    assert run(words.split()) == 0
    assert "http://***@c.example/x" in (told := capsys.readouterr().out) and "er2" not in told
    assert configuration.read().get("cache.from") == (address,)


@pytest.mark.parametrize("words", ["config", "config --json", "list"])
@pytest.mark.parametrize(
    "text",
    [
        f'cache.from = ["ftp://ada:{SECRET}@c/x"]', f'cache.from = "http://ada:{SECRET}@c/x"', f'site = "s://a:{SECRET}@h"',
        f'cache.from = [["ada:{SECRET}@c"]]', f'jobs = {{a = "http://ada:{SECRET}@c/x"}}',
        f'"http://ada:{SECRET}@c" = 1',
    ],
)  # fmt: skip
def test_a_mistake_shows_no_password(write: Write, words: str, text: str, capsys: Output) -> None:
    write("user", text)
    assert run(words.split()) == 2
    told = capsys.readouterr()
    assert "config.toml:" in told.out + told.err and "er2" not in told.out + told.err


@pytest.mark.parametrize("name", ["ENVKIT_CACHE_FROM", "ENVKIT_SITE", "ENVKIT_PREFIX"])
def test_a_mistake_in_a_variable_shows_no_password(
    write: Write, name: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (f"ftp://ada:{SECRET}@c/x", f"http://ada:1,{SECRET}@c/x", f"http://ada:1 {SECRET}@c/x"):
        monkeypatch.setenv(name, value)
        run(["config"])
        told = capsys.readouterr()
        assert name in told.out + told.err and "er2" not in told.out + told.err


MESSAGE = "Questions: support@hpc.example.org"


class TestMessage:
    """The line that a site has for its users."""

    @pytest.fixture(autouse=True)
    def site(self, write: Write) -> None:
        write("site", f'message = " {MESSAGE} "')

    def test_install_shows_it_whatever_becomes_of_it(self, capsys: Output) -> None:
        assert run(["install", "no-such-stack", "--method", "easybuild"]) != 0
        assert f"Your site: {MESSAGE}\n" in capsys.readouterr().out

    @pytest.mark.integration
    def test_doctor_shows_it_to_people_alone(self, capsys: Output) -> None:
        run(["doctor"])
        assert capsys.readouterr().out.endswith(f"\nYour site: {MESSAGE}\n")
        run(["doctor", "--json"])
        assert MESSAGE not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("name", "as_json", "is_shown"),
        [("rank-killed", False, True), ("rank-killed", True, False), ("pytorch-2ranks", False, False)],
    )
    def test_verify_shows_it_where_the_verdict_is_fail(
        self, name: str, as_json: bool, is_shown: bool, capsys: Output
    ) -> None:
        verify.shown(verified(name), {**dict.fromkeys(("junit", "html", "github", "baseline")), "as_json": as_json})
        assert (f"Your site: {MESSAGE}\n" in capsys.readouterr().out) is is_shown

    @pytest.mark.parametrize("value", ['""', '"  "', "7", '["a"]', '"a\\u001b[2J"', '"a\\nb"', f'"{301 * "a"}"'])
    def test_what_is_no_line_is_refused(self, value: str, write: Write, capsys: Output) -> None:
        write("site", f"message = {value}")
        assert run(["list", "--installed"]) == 2
        assert "a line of text of at most 300 characters" in capsys.readouterr().err
