"""HostFactory's side of the five scripts: each call runs a shell script with a JSON document."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from provisioner.hostfactory.provider_config import SCRIPTS
from provisioner.process_end import CommandFailed

CALL_SECONDS = 30.0
"""Maximum seconds of a call. A script answers in milliseconds, or waits up to 20 s for a lock."""


class ScriptFailed(CommandFailed):
    """Raised if a script fails or prints no JSON object. The text contains the script's own words."""


class HostFactory:
    """HostFactory's side of the interface. Each call uses only the script's output."""

    def __init__(
        self, environment: Mapping[str, str], inherited: Sequence[int] = (), check: Callable[[], None] = lambda: None
    ) -> None:
        """Store the environment of the scripts.

        ``inherited``: file descriptors that stay open until a script has ended, even if this process is killed.
        ``check``: function that raises an error if this process may have lost the right to request and return machines.
        """
        self.environment, self._inherited, self.check = dict(environment), inherited, check

    def call(self, script: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Run a script with a JSON document, and return the JSON object that the script prints. Raises ScriptFailed."""
        try:
            done = subprocess.run(
                [os.path.join(SCRIPTS, f"{script}.sh")],
                input=json.dumps(document),
                env=self.environment,
                cwd="/",
                capture_output=True,
                text=True,
                timeout=CALL_SECONDS,
                check=False,
                pass_fds=self._inherited,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ScriptFailed(f"{script}: {error}") from error
        if done.returncode:
            raise ScriptFailed(f"{script} ended with {done.returncode}: {done.stdout.strip()} {done.stderr.strip()}")
        with suppress(ValueError):
            if isinstance(answer := json.loads(done.stdout), dict):
                return answer
        raise ScriptFailed(f"{script} printed no JSON object: {done.stdout!r}")

    def templates(self) -> list[str]:
        """Return the ids of the templates that getAvailableTemplates lists."""
        return [template["templateId"] for template in self.call("getAvailableTemplates", {})["templates"]]

    def request(self, template: str, count: int, rc_account: str = "") -> str:
        """Call requestMachines, and return the id of the request. ``rc_account``: the account of the request; empty for
        a request without an account."""
        document = {"template": {"templateId": template, "machineCount": count}}
        account = {"rc_account": rc_account} if rc_account else {}
        return str(self.call("requestMachines", document | account)["requestId"])

    def status(self, id_: str) -> dict[str, Any]:
        """Return the entry about one request or return request, as getRequestStatus prints it."""
        return self.statuses([id_])[0]

    def statuses(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the entries about requests and return requests, as getRequestStatus prints them."""
        return list(self.call("getRequestStatus", {"requests": [{"requestId": id_} for id_ in ids]})["requests"])

    def return_machines(self, names: Sequence[str]) -> str:
        """Call requestReturnMachines, and return the id of the return request."""
        return str(self.call("requestReturnMachines", {"machines": list_hosts(names)})["requestId"])

    def reclaimed(self, names: Sequence[str]) -> dict[str, int]:
        """Call getReturnRequests, and return the machines among ``names`` that HostFactory has to return, each with the
        seconds until its end."""
        return {entry["machine"]: entry["gracePeriod"] for entry in self.reclaim(names)["requests"]}

    def reclaim(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the whole answer of getReturnRequests. Its message says why HostFactory has to return the machines."""
        return self.call("getReturnRequests", {"machines": list_hosts(names)})


def list_hosts(names: Sequence[str]) -> list[dict[str, str]]:
    """Return the list of hosts in HostFactory's form."""
    return [{"name": name, "machineId": name} for name in names]
