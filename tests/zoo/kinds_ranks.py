"""A rank that raises, sleeps or ends on its own, out of sight: by a customisation of the host's Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .kinds import Do, Kind, World

HOOK = """
import importlib.abc, importlib.machinery
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != {module!r}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module
        def execute(module):
            if not {function!r}:
                deed()
            run(module)
            if {function!r}:
                name = {function!r} if hasattr(module, {function!r}) else {function!r}.replace("_async", "")
                old = getattr(module, name)
                def new(*given, **named):
                    deed()
                    return old(*given, **named)
                setattr(module, name, new)
        spec.loader.exec_module = execute
        return spec
def deed():
    open({mark!r}, "a").close()
    {deed}
if {ranks}:
    sys.meta_path.insert(0, Finder())
"""
DEEDS = {
    "raises": ("raise RuntimeError('GRES gpu:7 is not bound')", r"GRES gpu:7 is not bound"),
    "raises-permission": (
        "raise PermissionError(13, 'Permission denied', '/data/set')",
        r"Permission denied[^\n]*/data/set|/data/set",
    ),
    "raises-memory": ("raise MemoryError()", r"memory"),
    "no-space": ("raise OSError(28, 'No space left on device', '/var/spool/x')", r"No space left"),
    "ends-0": ("os._exit(0)", r"(exit|end|stop|left)[^\n]*(status|code)? ?0?"),
    "ends-3": ("os._exit(3)", r"(status|code|with|exit\w*) 3\b"),
    "sys-exit": ("sys.exit('the quota of the group is used up')", r"quota of the group"),
    "sleeps": ("import time; time.sleep(600)", r"hang|hung|limit|waits|sleep|longer than|within|after \d+ s|did not"),
    "spins": ("exec('while True: pass')", r"hang|hung|limit|longer than|within|after \d+ s|did not"),
    "asserts": ("assert os.environ.get('SITE_TOKEN'), 'SITE_TOKEN is not set'", r"SITE_TOKEN"),
}
PLACES = {
    "import": ("{framework}", ""),
    "load": ("horovod.{framework}", ""),
    "init": ("horovod.{framework}", "init"),
    "allreduce": ("horovod.{framework}", "allreduce_async"),
    "broadcast": ("horovod.{framework}", "broadcast_async"),
    "shutdown": ("horovod.{framework}", "shutdown"),
    "numpy": ("numpy", ""),
}


def hooked(place: str, deed: str, ranks: str) -> Do:
    """Do a deed in some ranks at a place."""

    def do(world: World) -> None:
        module, function = PLACES[place]
        code = HOOK.format(
            module=module.format(framework=world.framework),
            function=function,
            deed=DEEDS[deed][0],
            ranks=ranks,
            mark=str(world.mark),
        )
        world.in_ranks(code)

    return do


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Deeds in one rank or in all."""
    for place, deed, who in (
        ("import", "raises", "1"),
        ("load", "raises", "0"),
        ("init", "raises", "1"),
        ("allreduce", "raises", "1"),
        ("broadcast", "raises", "all"),
        ("shutdown", "raises", "0"),
        ("import", "raises-permission", "all"),
        ("init", "raises-permission", "0"),
        ("numpy", "raises-memory", "1"),
        ("allreduce", "raises-memory", "0"),
        ("load", "no-space", "all"),
        ("import", "ends-0", "1"),
        ("init", "ends-0", "0"),
        ("allreduce", "ends-0", "1"),
        ("import", "ends-3", "0"),
        ("load", "ends-3", "1"),
        ("allreduce", "ends-3", "1"),
        ("shutdown", "ends-3", "1"),
        ("import", "sys-exit", "1"),
        ("init", "sys-exit", "all"),
        ("import", "sleeps", "1"),
        ("init", "sleeps", "0"),
        ("allreduce", "sleeps", "1"),
        ("load", "spins", "1"),
        ("init", "spins", "1"),
        ("broadcast", "sleeps", "0"),
        ("import", "asserts", "all"),
        ("load", "asserts", "1"),
        ("shutdown", "sleeps", "1"),
    ):
        which = "every rank" if who == "all" else f"rank {who}"
        slow = deed in ("sleeps", "spins") or deed == "ends-0"
        yield Kind(
            name=f"ranks/{place}/{deed}/{who}",
            group="a rank raises, ends or sleeps",
            did=f"{which} at {place}: {DEEDS[deed][0]} (by a sitecustomize of the host's Python)",
            do=hooked(place, deed, "True" if who == "all" else f"RANK == '{who}'"),
            true=DEEDS[deed][1]
            if who == "all"
            else rf"rank {who}\b.*({DEEDS[deed][1]})|({DEEDS[deed][1]}).*rank {who}\b",
            mended="words",
            words=".",
            never=r"--rebuild|envkit install|envkit repair|network interface|if_include",
            options=("-n", "2", "--timeout", "15" if slow else "25"),
        )
    late = "import time; time.sleep(4)"
    for place in ("import", "init"):

        def slow_start(world: World, place: str = place) -> None:
            module, function = PLACES[place]
            world.in_ranks(
                HOOK.format(
                    module=module.format(framework=world.framework),
                    function=function,
                    deed=late,
                    ranks="RANK == '1'",
                    mark=str(world.mark),
                )
            )

        yield Kind(name=f"harmless/late-{place}", group="harmless", did=f"rank 1 is 4 s late at {place}", do=slow_start)
