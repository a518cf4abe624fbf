"""The receipt of modules on top of a release of EESSI."""

from dataclasses import replace
from pathlib import Path

from envkit.easybuild.receipt import ModulesReceipt
from envkit.environments.eessi import EessiEnvironment
from envkit.environments.name_syntax import is_name


class EessiReceipt(ModulesReceipt, frozen=True, kw_only=True, tag_field="method", tag="eessi"):
    """An environment of modules that EESSI's EasyBuild made on top of a ``release``.

    ``copy`` is the local copy of the repository that it was made with, where it was one.
    """

    release: str
    copy: str = ""

    @property
    def venv_refusal(self) -> str:
        """Why it can be used only by what is started in it."""
        return "It is on top of a release of EESSI, which is mounted only for what is started in it."

    @property
    def environment(self) -> EessiEnvironment:
        """The way in, as this machine has it now. Raises HostProblem where it has none."""
        from envkit.eessi import entry

        copy = Path(self.copy) if self.copy else None
        entered = entry.enter(
            entry.EntryOptions(version=self.release, copy=copy, visible=(Path(self.tree),)), keep=False
        )
        return replace(entered, name=self.name, modulepath=self.folder, modules=(self.module,))

    def damage(self) -> str:
        """Say what of it has gone, its module or its release, as far as that can be seen; nothing if all is there."""
        from envkit.eessi import entry

        if lost := super().damage():
            return lost
        gone = entry.gone(self.release, Path(self.copy) if self.copy else None)
        return f"its release of EESSI has gone: {gone}" if gone else ""

    def validation_error(self) -> str:
        """Say what in it cannot be."""
        return super().validation_error() if is_name(self.release) else f"It names {self.release!r}."

    def described(self) -> dict[str, str]:
        """Return how it is loaded by hand, and its modules."""
        hand = f"module load EESSI/{self.release} && module use {self.folder} && module load {self.module}"
        return {"By hand": hand, "Modules": "\n            ".join(module.name for module in self.modules)}


RECEIPT = EessiReceipt
