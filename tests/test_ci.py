"""What is offered for GitHub Actions and GitLab CI: it can be read, and its shell text is sound."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

ROOT = Path(__file__).parents[1]
INPUT = re.compile(r"\$\[\[ inputs\.(\w+) \]\]")


def action() -> dict[str, Any]:
    """Return the action."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def steps() -> dict[str, dict[str, Any]]:
    """Return the steps of the action that run shell text, by name."""
    return {step["name"]: step for step in action()["runs"]["steps"] if "run" in step}


def gitlab(**given: Any) -> dict[str, Any]:
    """Return the job, with what is given for its inputs put in as GitLab does."""
    head, body = (ROOT / "ci" / "gitlab.yml").read_text().split("\n---\n")
    inputs = yaml.safe_load(head)["spec"]["inputs"]
    assert given.keys() <= inputs.keys()
    values = {name: given.get(name, one["default"]) for name, one in inputs.items()}
    used = set(INPUT.findall(body))
    assert used == inputs.keys()
    [job] = yaml.safe_load(INPUT.sub(lambda match: str(values[match[1]]), body)).values()
    found: dict[str, Any] = job
    return found


def shellcheck(text: str, *words: str) -> None:
    """Require that a shell text is sound."""
    done = subprocess.run(
        ["shellcheck", "--shell=bash", *words, "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


class TestAction:
    def test_has_what_github_asks_for(self) -> None:
        found = action()
        assert found["name"] and found["description"]
        assert found["runs"]["using"] == "composite"
        assert all(one["description"] and "default" in one for one in found["inputs"].values())
        assert all(step["shell"] == "bash" for step in steps().values())

    def test_uses_nothing_but_what_a_commit_names(self) -> None:
        text = (ROOT / "action.yml").read_text()
        used = [step["uses"] for step in action()["runs"]["steps"] if "uses" in step]
        assert used
        assert all(re.search(rf"uses: {re.escape(one)} # v\d+\.\d+\.\d+\n", text) for one in used)
        assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", one) for one in used)

    def test_no_input_becomes_shell_text(self) -> None:
        assert [name for name, step in steps().items() if "${{" in step["run"]] == []
        given = set(re.findall(r"\$\{\{ inputs\.(\w+) \}\}", (ROOT / "action.yml").read_text()))
        assert given == action()["inputs"].keys()

    @pytest.mark.parametrize("name", steps())
    def test_its_shell_text_is_sound(self, name: str) -> None:
        step = steps()[name]
        known = "".join(f"{variable}=x\n" for variable in step.get("env", {}))
        shellcheck(f"#!/bin/bash\nset -eo pipefail\n{known}{step['run']}")

    def test_what_is_built_has_a_name_that_changes_with_the_code(self, tmp_path: Path) -> None:
        for folder in ("easyconfigs", "containers", "envkit", "requirements"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "file").write_text(folder)

        def made() -> str:
            output = tmp_path / "output"
            output.unlink(missing_ok=True)
            env = {**os.environ, "GITHUB_ACTION_PATH": str(tmp_path), "GITHUB_OUTPUT": str(output)}
            argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps()["Name what is built"]["run"]]
            subprocess.run(argv, env=env, check=True)
            match = re.fullmatch(r"of=([0-9a-f]{64})\n", output.read_text())
            assert match
            return match[1]

        before = made()
        assert made() == before
        (tmp_path / "easyconfigs" / "file").write_text("other")
        assert made() != before


class TestGitlab:
    def test_shows_the_report_among_the_tests(self) -> None:
        job = gitlab()
        assert job["artifacts"]["reports"] == {"junit": "envkit.xml"}
        assert job["artifacts"]["when"] == "always"
        assert job["tags"] == []
        assert gitlab(tags=["slurm"])["tags"] == ["slurm"]

    def test_its_shell_text_is_sound(self) -> None:
        job = gitlab(setup="module load envkit")
        known = "".join(f"{name}=x\n" for name in job["variables"])
        lines = "\n".join([*job["before_script"], *job["script"]])
        shellcheck(f"#!/bin/bash\n{known}{lines}\n", "--exclude=SC2086")  # options are several words

    @pytest.mark.parametrize("name", ["", "my environment"])
    def test_calls_verify_as_is_asked(self, name: str, tmp_path: Path) -> None:
        program = tmp_path / "envkit"
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)
        job = gitlab(environment=name, ranks="4", options="--submit --nodes 2")
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **job["variables"]}
        lines = "\n".join([*job["before_script"], *job["script"]])
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", lines], env=env, capture_output=True, text=True)
        words = ["-n", "4", "--junit", "envkit.xml", "--html", "envkit.html", "--submit", "--nodes", "2"]
        assert done.stdout.splitlines() == ["verify", *([name] if name else []), *words]


def test_shellcheck_is_there() -> None:
    assert shutil.which("shellcheck")


class TestCacheOfBuilds:
    """The examples of docs/cache.md."""

    def test_can_be_read_and_their_commands_are_known(self) -> None:
        from envkit.cli import envkit

        text = (ROOT / "docs" / "cache.md").read_text()
        github, lab = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
        steps = github["jobs"]["build"]["steps"]
        scripts = [*(one["run"] for one in steps), "\n".join(lab["envkit-cache"]["script"])]
        for script in scripts:
            shellcheck(script)
        pushes = [line.strip() for script in scripts for line in script.splitlines() if "cache push" in line]
        assert len(pushes) == 2
        context = click.Context(envkit)
        group = envkit.get_command(context, "cache")
        assert isinstance(group, click.Group)
        known = {name for option in group.commands["push"].params for name in option.opts}
        for line in pushes:
            assert set(re.findall(r"--[a-z-]+", line)) <= known
            assert "--from-ci" in line
