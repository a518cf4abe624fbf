"""What of the caller's settings reaches a build and an environment, and what does not."""

import subprocess
from pathlib import Path

import pytest

from envkit.machine.modules_tool import find_modules_tool

from .site import TOYS, Site, needs

pytestmark = pytest.mark.integration


def settings(site: Site) -> dict[str, str]:
    """Return the environment variables that the toy was built with."""
    pairs = (site.tree / "software/toy-middle/1.0/settings").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def site_modules(site: Site) -> Path:
    """Make two modules of a site, one of which a careless person has loaded."""
    folder = site.folder / "site-modules"
    for name in ("Careless", "Wanted"):
        (folder / name).mkdir(parents=True)
        text = f'setenv("{name.upper()}_SEEN", "yes")\nprepend_path("PATH", "/site/{name}/bin")\n'
        (folder / name / "1.0.lua").write_text(text)
    return folder


def with_loaded(site: Site, module: str) -> dict[str, str]:
    """Return the variables of a shell in which the real Lmod has loaded a module of the site."""
    tool = find_modules_tool()
    assert tool is not None
    script = (
        f'eval "$({tool.command} bash use {site_modules(site)})"; eval "$({tool.command} bash load {module})"; env -0'
    )
    done = subprocess.run(["bash", "-c", script], env=dict(site.env), capture_output=True, text=True, check=True)
    pairs = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if "=" in pair)
    return {key: value for key, value in pairs.items() if not key.startswith("BASH_FUNC_")}


def leaking(site: Site) -> dict[str, str]:
    """Return what a careless person has in the environment, and write what lies in files."""
    (site.home / ".config" / "easybuild").mkdir(parents=True)
    wrong = site.folder / "wrong"
    (site.home / ".config/easybuild/config.cfg").write_text(f"[config]\nprefix = {wrong}\nbuildpath = {wrong}\n")
    (site.folder / "xdg" / "easybuild.d").mkdir(parents=True)
    (site.folder / "xdg/easybuild.d/site.cfg").write_text(f"[config]\ninstallpath = {wrong}\nrobot-paths = {wrong}\n")
    script = site.folder / "bash_env.sh"
    script.write_text(f"echo printed by BASH_ENV\nmodule() {{ touch {site.folder}/redefined; }}\nexport -f module\n")
    return {
        "EASYBUILD_PREFIX": str(wrong),
        "EASYBUILD_INSTALLPATH": str(wrong),
        "EASYBUILD_SOURCEPATH": str(wrong),
        "EASYBUILD_ROBOT_PATHS": str(wrong),
        "EASYBUILD_OPTARCH": "march=wrong",
        "EASYBUILD_HOOKS": str(TOYS / "hooks.py"),
        "XDG_CONFIG_DIRS": str(site.folder / "xdg"),
        "LD_LIBRARY_PATH": "/wrong/lib",
        "PYTHONPATH": "/wrong/python",
        "CFLAGS": "-Wrong",
        "CPATH": "/wrong/include",
        "BASH_ENV": str(script),
        "ENV": str(script),
    }


def test_nothing_of_the_caller_reaches_a_build(site: Site) -> None:
    env = {**with_loaded(site, "Careless"), **leaking(site)}
    assert env["CARELESS_SEEN"] == "yes"
    assert env["LOADEDMODULES"] == "Careless/1.0"
    site.installed("toy-top", env=env)
    seen = settings(site)
    assert "wrong" not in str({k: v for k, v in seen.items() if k not in ("ENVKIT_SITE_HOOKS", "HOME")}).lower()
    assert not {"CARELESS_SEEN", "PYTHONPATH", "BASH_ENV", "ENV", "EASYBUILD_PREFIX", "CPATH"} & set(seen)
    assert "/site/Careless/bin" not in seen["PATH"]
    assert seen["LOADEDMODULES"] == "toy-base/1.0"
    assert not (site.folder / "wrong").exists()
    assert not (site.folder / "redefined").exists()
    assert (site.home / "hooked").read_text().split() == ["toy-base", "toy-middle", "toy-top"]

    inside = site.run("run", "toy-top-1.0", "--", "env", env=env)
    assert inside.err == ""
    lines = inside.out.splitlines()
    assert lines[0] != "printed by BASH_ENV"
    assert "printed by BASH_ENV" not in lines
    assert "LOADEDMODULES=toy-base/1.0:toy-middle/1.0:toy-top/1.0" in lines
    assert "CARELESS_SEEN=yes" not in lines
    assert not (site.folder / "redefined").exists()
    assert f"BASH_ENV={env['BASH_ENV']}" in lines


def test_hooks_named_in_a_file_are_called(site: Site) -> None:
    (site.home / ".config" / "easybuild").mkdir(parents=True)
    (site.home / ".config/easybuild/config.cfg").write_text(f"[config]\nhooks = {TOYS / 'hooks.py'}\n")
    site.installed("toy-base")
    assert (site.home / "hooked").read_text() == "toy-base\n"


def test_site_module_that_is_asked_for(site: Site) -> None:
    env = {"MODULEPATH": str(site_modules(site))}
    site.installed("toy-top", "--load", "Wanted/1.0", env=env)
    seen = settings(site)
    assert seen["WANTED_SEEN"] == "yes"
    assert "/site/Wanted/bin" in seen["PATH"]
    inside = site.run("run", "toy-top-1.0", "--", "env", env=env).out
    assert "WANTED_SEEN=yes" in inside
    assert "CARELESS_SEEN" not in inside
    assert "module load Wanted/1.0 toy-top/1.0" in site.run("show", "toy-top-1.0").out


def test_site_module_that_is_not_there(site: Site) -> None:
    refused = site.install("toy-top", "--load", "Absent/1.0").expect(92)
    assert "The modules Absent/1.0 could not be loaded." in refused.err
    assert "See what there is with 'module avail'" in refused.err
    assert not site.prefix.exists()


def test_environment_modules(site: Site, environment_modules: Path) -> None:
    needs("mount")
    hide = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /usr/share/lmod; exec "$@"', "sh"]
    env = {"MODULES_CMD": str(environment_modules)}
    site.installed("toy-top", env=env, before=hide)
    assert (site.tree / "modules/all/toy-top/1.0").read_text().startswith("#%Module")
    words = ["a b", "", "$x", "new\nline"]
    inside = site.run("run", "toy-top-1.0", "--", "printf", "<%s>", *words, env=env, before=hide)
    assert inside.out == "".join(f"<{word}>" for word in words)
    assert site.run("run", "toy-top-1.0", "--", "toy-top", "7", status=7, env=env, before=hide).out == "toy 1\n"
    loaded = site.run("run", "toy-top-1.0", "--", "sh", "-c", "echo $LOADEDMODULES", env=env, before=hide)
    assert loaded.out == "toy-base/1.0:toy-middle/1.0:toy-top/1.0\n"
