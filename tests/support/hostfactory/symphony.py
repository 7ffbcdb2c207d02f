"""Files of Symphony 7.3.2 that our programs need, in the installer's form: HostFactory's files, profile and service.

HostFactory and EGO are closed source. So these files follow the paragraphs of docs/hostfactory.md that begin with
**profile.hf**, **fresh** and **start**.
"""

from __future__ import annotations

import json
from pathlib import Path


def _shipped(document: object) -> str:
    """Return a registration file in the installer's layout: indented by four spaces, with short lists on one line."""
    text = json.dumps(document, indent=4)
    return text.replace('[\n                "awsinst"\n            ]', '["awsinst"]') + "\n"


SHIPPED = {
    "providerplugins/hostProviderPlugins.json": _shipped(
        {
            "version": 2,
            "providerplugins": [
                {
                    "name": "aws",
                    "enabled": 1,
                    "scriptPath": "${HF_TOP}/${HF_VERSION}/providerplugins/aws/scripts/",
                }
            ],
        }
    ),
    "providers/hostProviders.json": _shipped(
        {
            "version": 2,
            "providers": [
                {
                    "name": "awsinst",
                    "enabled": 0,
                    "plugin": "aws",
                    "confPath": "${HF_CONFDIR}/providers/awsinst/",
                    "workPath": "${HF_WORKDIR}/providers/awsinst/",
                    "logPath": "${HF_LOGDIR}/",
                }
            ],
        }
    ),
    "requestors/hostRequestors.json": _shipped(
        {
            "version": 2,
            "requestors": [
                {
                    "name": "symAinst",
                    "enabled": 0,
                    "plugin": "symA",
                    "confPath": "${HF_CONFDIR}/requestors/symAinst/",
                    "workPath": "${HF_WORKDIR}/requestors/symAinst/",
                    "logPath": "${HF_LOGDIR}/",
                    "providers": ["awsinst"],
                    "requestMode": "POLL",
                },
                {"name": "admin", "enabled": 1, "providers": ["awsinst"], "requestMode": "REST_MANUAL"},
            ],
        }
    ),
}
"""HostFactory's registration files, by their path below conf. The requestor that reacts to load is disabled, and has
another provider."""

SERVICE = """<?xml version="1.0" encoding="UTF-8"?>
<sc:ServiceDefinition xmlns:sc="http://www.platform.com/ego/2005/05/schema/sc" ServiceName="HostFactory">
  <sc:ControlPolicy>
    <sc:StartType>MANUAL</sc:StartType>
  </sc:ControlPolicy>
</sc:ServiceDefinition>
"""

VERSION = "1.2"


def installed(top: Path) -> Path:
    """Make the directory tree of EGO_TOP, ``top``, with a HostFactory that has never run. Return HF_TOP, which is below
    ``top``."""
    hf = top / "hostfactory"
    for name, text in SHIPPED.items():
        (hf / "conf" / name).parent.mkdir(parents=True)
        (hf / "conf" / name).write_text(text)
    for name in ("work", "log", "db", f"{VERSION}/providerplugins"):
        (hf / name).mkdir(parents=True)
    (top / "kernel" / "conf").mkdir(parents=True)
    (top / "kernel" / "conf" / "ego.conf").write_text("EGO_MASTER_LIST=grid-master-0\n")
    services = top / "eservice" / "esc" / "conf" / "services"
    services.mkdir(parents=True)
    (services / "hostfactory.xml").write_text(SERVICE)
    return hf


def profile_of(top: str, path: str, libraries: str = "") -> dict[str, str]:
    """Return the variables that a shell has after it sourced profile.hf of EGO_TOP ``top``. The profile sets six
    variables.

    ``libraries``: the first directory of LD_LIBRARY_PATH.
    """
    hf = f"{top}/hostfactory"
    platform = "linux-x86_64"
    directories = [
        f"{hf}/{VERSION}/{platform}/lib",
        f"{top}/4.0/{platform}/lib",
        f"{top}/soam/7.3.2/{platform}/lib64",
        f"{top}/perf/ego/4.0/{platform}/lib",
        f"{top}/perf/soam/7.3.2/{platform}/lib",
        f"{top}/soam/mapreduce/7.3.2/{platform}/lib",
        f"{top}/yarn/{platform}/lib",
    ]
    return {
        "HF_TOP": hf,
        "HF_VERSION": VERSION,
        "HF_ETCDIR": f"{hf}/{VERSION}/{platform}/etc",
        "HF_LIBDIR": directories[0],
        "PATH": f"{hf}/{VERSION}/{platform}/bin:{path}",
        "LD_LIBRARY_PATH": ":".join([libraries, *directories] if libraries else directories),
    }
