"""The receipt of modules that EasyBuild made."""

from collections.abc import Collection
from pathlib import Path
from typing import Self

import msgspec

from envkit.environments import manifest
from envkit.environments.environment import ModuleEnvironment
from envkit.environments.manifest import Damage, Measure
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Module, Receipt, odd_text
from envkit.machine.modules_tool import ModulesTool


class ModulesReceipt(Receipt, frozen=True, kw_only=True):
    """An environment of modules, whichever eb made them."""

    module: str
    modules: tuple[Module, ...]

    @property
    def folder(self) -> Path:
        """The folder of its module files."""
        return Tree(root=Path(self.tree)).modulepath

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the user may call it by."""
        return self.name, self.module

    @property
    def recipes(self) -> tuple[Module, ...]:
        """The modules that it is made of."""
        return self.modules

    @property
    def words(self) -> list[str]:
        """All that it names: modules, and extras."""
        return [self.module, *(module.name for module in self.modules), *self.extras, *self.extras.values()]

    def damage(self) -> str:
        """Say that its module has gone, or all software of its modules; nothing if they are there."""
        tree = Tree(root=Path(self.tree))
        if lost := next((part for part in (self.module, *self.extras.values()) if not tree.has(part)), ""):
            return f"its module {lost} has gone. It was in {self.folder}"
        return f"all its software has gone. It was in {tree.software}" if self.is_hollow else ""

    @property
    def is_hollow(self) -> bool:
        """Whether no module has a folder of software any more, which eb makes for each."""
        software = Tree(root=Path(self.tree)).software
        return not any((software / module.name).is_dir() for module in self.modules)

    def gone(self) -> list[str]:
        """Return which of its modules have gone."""
        return [module.name for module in self.modules if not Tree(root=Path(self.tree)).has(module.name)]

    def damaged(self, *, is_quick: bool = False) -> list[Damage]:
        """Return the files of its modules that are not as they were built."""
        tree, modules = Tree(root=Path(self.tree)), [module.name for module in self.modules]
        changed = manifest.damage(tree, modules, digests=not is_quick, every=not is_quick)
        return [*changed, *self.unloadable({damage.module for damage in changed})]

    def broken(self) -> Damage | None:
        """Return the first library, program or module file of it that has gone or has another size."""
        first = manifest.broken(Tree(root=Path(self.tree)), [module.name for module in self.modules])
        return first or next(iter(self.unloadable(set())), None)

    def unloadable(self, named: Collection[str]) -> list[Damage]:
        """Return the module files that have gone, and the folders where all have, but for modules that are told."""
        lost = {module: self.folder / module for module in self.gone()}
        if self.is_hollow:
            software = Tree(root=Path(self.tree)).software
            lost = {module.name: software / module.name for module in self.modules}
        remaining = {module: path for module, path in lost.items() if module not in named}
        return [Damage(module=module, path=str(path), how="gone") for module, path in remaining.items()]

    def measure(self) -> Measure:
        """Return how much of it is compared."""
        return manifest.measure(Tree(root=Path(self.tree)), [module.name for module in self.modules])

    def validation_error(self) -> str:
        """Say what in it cannot be."""
        return odd_text(self, self.words)


class ModuleReceipt(ModulesReceipt, frozen=True, kw_only=True, tag_field="method", tag="easybuild"):
    """An environment of modules that EasyBuild made.

    ``venv`` is the folder of the virtual environment on top of it that was named in its place, and never written.
    """

    modules_tool: str
    modules_command: str
    load: tuple[str, ...]
    easybuild: str
    venv: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def environment(self) -> ModuleEnvironment:
        """The way in."""
        tool = ModulesTool(kind=self.modules_tool, command=Path(self.modules_command))
        return ModuleEnvironment(
            name=self.called,
            tool=tool,
            modulepath=self.folder,
            modules=(self.module, *self.extras.values()),
            load=self.load,
            venv=self.venv or "",
        )

    @property
    def called(self) -> str:
        """The word for it in a command line, or for the virtual environment on top of it that was named."""
        return self.venv or self.name

    def require_modules(self) -> ModuleEnvironment:
        """Return the way in."""
        return self.environment

    def within(self, venv: Path) -> Self:
        """Return it as it is with a virtual environment on top of it."""
        return msgspec.structs.replace(self, venv=str(venv))

    def validation_error(self) -> str:
        """Say what in it cannot be."""
        words = [*self.words, *self.load]
        return f"It names {self.venv!r}." if self.venv else odd_text(self, words)

    def described(self) -> dict[str, str]:
        """Return how it is loaded by hand, and its modules."""
        hand = f"module use {self.folder} && module load {' '.join((*self.load, *self.environment.modules))}"
        from_cache = {"Taken": self.origin} if self.origin else {}
        modules = "\n            ".join(module.name for module in self.modules)
        added = {"Extras": ", ".join(self.extras)} if self.extras else {}
        return {"By hand": hand, **added, **from_cache, "Modules": modules}


RECEIPT = ModuleReceipt


def shareable(receipt: Receipt) -> ModuleReceipt | None:
    """Return a receipt if a cache can hold the Horovod of its environment, which eb has made here; None if not."""
    if isinstance(receipt, ModuleReceipt) and not receipt.venv and receipt.module.startswith("Horovod/"):
        return receipt
    return None
