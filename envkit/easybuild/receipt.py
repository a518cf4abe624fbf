"""The receipt of modules that EasyBuild made."""

from collections.abc import Collection
from pathlib import Path

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
        """What the user may call it."""
        return self.name, self.module

    @property
    def recipes(self) -> tuple[Module, ...]:
        """The modules that it is made of."""
        return self.modules

    def damage(self) -> str:
        """Say that its module has gone; nothing if it is there."""
        there = Tree(root=Path(self.tree)).has(self.module)
        return "" if there else f"its module {self.module} has gone. It was in {self.folder}"

    def gone(self) -> list[str]:
        """Return which of its modules have gone."""
        return [module.name for module in self.modules if not Tree(root=Path(self.tree)).has(module.name)]

    def damaged(self, *, is_quick: bool = False) -> list[Damage]:
        """Return the files of its modules that are not as they were built."""
        tree, modules = Tree(root=Path(self.tree)), [module.name for module in self.modules]
        found = manifest.damage(tree, modules, digests=not is_quick, every=not is_quick)
        return [*found, *self.unloadable({one.module for one in found})]

    def broken(self) -> Damage | None:
        """Return the first library, program or module file of it that has gone or has another size."""
        found = manifest.broken(Tree(root=Path(self.tree)), [module.name for module in self.modules])
        return found or next(iter(self.unloadable(set())), None)

    def unloadable(self, told: Collection[str]) -> list[Damage]:
        """Return the module files that have gone, but for those of modules that are told already."""
        lost = [module for module in self.gone() if module not in told]
        return [Damage(module=module, path=str(self.folder / module), how="gone") for module in lost]

    def measure(self) -> Measure:
        """Return how much of it is compared."""
        return manifest.measure(Tree(root=Path(self.tree)), [module.name for module in self.modules])

    def oddity(self) -> str:
        """Say what in it cannot be."""
        return odd_text(self, [self.module, *(module.name for module in self.modules)])


class ModuleReceipt(ModulesReceipt, frozen=True, kw_only=True, tag_field="method", tag="easybuild"):
    """An environment of modules that EasyBuild made."""

    modules_tool: str
    modules_command: str
    load: tuple[str, ...]
    easybuild: str

    @property
    def environment(self) -> ModuleEnvironment:
        """The way in."""
        tool = ModulesTool(kind=self.modules_tool, command=Path(self.modules_command))
        return ModuleEnvironment(
            name=self.name, tool=tool, modulepath=self.folder, modules=(self.module,), load=self.load
        )

    def oddity(self) -> str:
        """Say what in it cannot be."""
        return odd_text(self, [self.module, *(module.name for module in self.modules), *self.load])

    def described(self) -> dict[str, str]:
        """Return how it is loaded by hand, and its modules."""
        hand = f"module use {self.folder} && module load {' '.join((*self.load, self.module))}"
        return {"By hand": hand, "Modules": "\n            ".join(module.name for module in self.modules)}


RECEIPT = ModuleReceipt
