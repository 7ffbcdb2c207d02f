"""EGO's ego.conf, as far as a grid depends on it whose hosts come and go."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from hf_scripts.check_results import CheckResult, fine, fix

EXPIRY = "EGO_DYNAMIC_HOST_TIMEOUT"


def check_expiry(environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Return the result for the time after which EGO drops a host that has gone; none without an ego.conf to read."""
    path = _path(environment)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.findall(rf"(?m)^[ \t]*{EXPIRY}[ \t]*=[ \t]*([^\s#]+)", file.read())
    except OSError:
        return
    if found:
        yield fine(f"{path}: EGO drops a host that has gone after {found[-1]} ({EXPIRY})")
    else:
        yield fix(
            f"{path}: {EXPIRY} is missing, so EGO lists each machine that has gone for ever: "
            f"add {EXPIRY}=10m, then restart EGO on the management hosts"
        )


def _path(environment: Mapping[str, str]) -> str:
    """The file by the variables of EGO's profile, or of HostFactory's: HF_TOP lies beside the kernel's directory."""
    top = environment.get("EGO_TOP") or os.path.join(environment.get("HF_TOP") or os.devnull, os.pardir)
    return os.path.join(environment.get("EGO_CONFDIR") or os.path.join(top, "kernel", "conf"), "ego.conf")
