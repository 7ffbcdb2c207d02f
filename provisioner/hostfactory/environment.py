"""Where a script finds its configuration, its state and its log: HF_PROVIDER_*, else HF_*, else LSF's PRO_*.

Looks at the environment and at which directories exist; reads and writes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from provisioner.hostfactory.templates import TEMPLATE_ID, shown

SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "hf_scripts")
"""Where the scripts are: their package is installed beside this one."""


class DirectoryError(Exception):
    """The environment does not say where something is; the text is one line that names the variable."""


class Directories(NamedTuple):
    """The directories of one provider instance. Each property raises DirectoryError when the environment gives none."""

    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """The provider instance: HF_PROVIDER_NAME, for LSF PROVIDER_NAME."""
        name = self._first("HF_PROVIDER_NAME", "PROVIDER_NAME")
        if not re.fullmatch(TEMPLATE_ID, name):
            words = "is not set" if not name else f"expected 1 to 64 letters, digits, '_' or '-', got {shown(name)}"
            raise DirectoryError(f"HF_PROVIDER_NAME: {words}")
        return name

    @property
    def lsf(self) -> bool:
        """LSF's resource connector calls, not HostFactory."""
        return not self._first("HF_PROVIDER_NAME") and bool(self._first("PROVIDER_NAME"))

    @property
    def conf(self) -> str:
        """The directory of HF's two files for the instance. LSF keeps them in ``conf`` below the directory it names."""
        directory = self._given("HF_PROVIDER_CONFDIR", "HF_CONFDIR", "conf") or self._first("PRO_CONF_DIR")
        if not directory:
            raise DirectoryError("HF_PROVIDER_CONFDIR: is not set, nor HF_CONFDIR, HF_TOP or PRO_CONF_DIR")
        deeper = os.path.join(directory, "conf")
        return deeper if not self._first("HF_PROVIDER_CONFDIR") and os.path.isdir(deeper) else directory

    @property
    def state(self) -> str:
        """The state directory: HF's work directory. LSF's is shared by all providers: there a directory in it."""
        directory = self._given("HF_PROVIDER_WORKDIR", "HF_WORKDIR", "work")
        if not directory and self._first("PRO_DATA_DIR"):
            directory = os.path.join(self._first("PRO_DATA_DIR"), self.name)
        if not directory:
            raise DirectoryError("HF_PROVIDER_WORKDIR: is not set, nor HF_WORKDIR, HF_TOP or PRO_DATA_DIR")
        return directory

    @property
    def logs(self) -> str:
        """The directory of the log; empty when the environment gives none: then there is no log."""
        return self._first("HF_PROVIDER_LOGDIR") or self._common("HF_LOGDIR", "log") or self._first("PRO_LSF_LOGDIR")

    @property
    def registrations(self) -> str:
        """The directory of HF's registration files, which is that of all its configuration; empty: unknown."""
        return self._common("HF_CONFDIR", "conf")

    @property
    def host(self) -> str:
        """The machine that HostFactory runs on, as the log's name has it."""
        return self._first("EGOSC_INSTANCE_HOST") or os.uname().nodename

    def _given(self, own: str, common: str, under_top: str) -> str:
        """The instance's own directory, else its part of HF's common one."""
        if self._first(own):
            return self._first(own)
        directory = self._common(common, under_top)
        return directory and os.path.join(directory, "providers", self.name)

    def _common(self, name: str, under_top: str) -> str:
        """HF's common directory: its variable, which HF's profile need not set, else below HF_TOP; empty: unknown."""
        return self._first(name) or (self._first("HF_TOP") and os.path.join(self._first("HF_TOP"), under_top))

    def _first(self, *names: str) -> str:
        """The first of these variables that is not empty."""
        return next((self.environment[name] for name in names if self.environment.get(name)), "")
