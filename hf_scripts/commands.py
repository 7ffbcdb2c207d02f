"""HostFactory's five commands: one JSON document in, the state files, one JSON document out, in milliseconds (law:
scripts answer from files). A script call succeeds (JSON on stdout, exit 0) or is refused (one line on stdout, exit 1,
nothing recorded).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hf_scripts import documents, log
from hf_scripts.documents import Document, Refused
from provisioner.hostfactory import Answer, Recorded, templates
from provisioner.hostfactory.instance import Directories, DirectoryError, TemplatesError
from provisioner.hostfactory.templates import Provider, Template
from provisioner.names import REQUEST_ID_LENGTH, RETURN_ID_PREFIX, printable, short_name
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError, StateUnwritable
from provisioner.state.markers import SILENT_SECONDS

if TYPE_CHECKING:
    from provisioner.state.interfaces import ScriptState

MAX_NAMED = 20
"""Lost hosts that a message names with their causes; all are in the list."""

OUR_ID = rf"({RETURN_ID_PREFIX})?[a-z0-9]{{{REQUEST_ID_LENGTH}}}"
"""The shape of the ids that we print: any other id is unknown, and never becomes part of a file's name. It is compiled
on first use, as not every script call has ids.
"""

LOWERED = "maxNumber is lower than HostFactory was shown: stop it, remove the remembered file, start it"
WAITING = "Waiting for the provisioner."
UNKNOWN = "The provisioner has no request with this id."


class ScriptCall(NamedTuple):
    """One script call, and the facts of its log line beside command and exit code."""

    document: Document
    directories: Directories
    facts: dict[str, object]

    def state(self) -> ScriptState:
        """What was recorded and published; opening it touches nothing."""
        return StateDir(self.directories.state)


# --- getAvailableTemplates --------------------------------------------------------------------------------------------


def get_available_templates(call: ScriptCall) -> str:
    """The valid templates of the file; of these, those HF asks for."""
    provider = _load(call)
    for problem in provider.problems:
        log.append(call.directories, "WARNING", "Left out a setting", {"problem": f"{problem.file}: {problem}"})
    without_use = [*provider.config.unused, *provider.config.unknown]
    if without_use:  # HF calls this when it starts and hardly ever again, so the log tells it here
        log.append(call.directories, "INFO", "Settings without use here", {"keys": without_use})
    asked = _asked_for(call, provider.templates)
    numbers, available = _max_numbers(call, provider.templates), _available(call)
    listed = [
        _named_for(call, template).document()
        | {"maxNumber": numbers[template.id]}
        | ({"availableNumber": available[template.id]} if template.id in available else {})
        for template in asked
    ]
    _note_read(call, provider)
    call.facts.update(templates=len(listed), mistakes=len(provider.problems))
    return json.dumps({"templates": listed, "message": "Get available templates success."})


def _load(call: ScriptCall) -> Provider:
    return templates.load(call.directories.conf, call.directories.environment, call.directories.config_file)


def _named_for(call: ScriptCall, template: Template) -> Template:
    """LSF calls memory ``mem``."""
    if not call.directories.lsf:
        return template
    return template._replace(attributes={"mem": template.attributes["nram"], **template.attributes})


def _asked_for(call: ScriptCall, valid: Sequence[Template]) -> Sequence[Template]:
    """Those that one of HF's filters fits; all without a filter.

    None is refused: HF would drop a provider without templates until it restarts (docs/hostfactory.md: no templates).
    """
    filters = documents.filters(call.document)
    fitting = [template for template in valid if any(template.fits(*wanted) for wanted in filters)]
    if filters and not fitting:
        names = ", ".join(template.id for template in valid)
        raise call.document.expected("templates", f"what fits one of {names}", call.document.root["templates"])
    return fitting if filters else valid


def _max_numbers(call: ScriptCall, valid: Sequence[Template]) -> Mapping[str, int]:
    """Each maxNumber, but none lower than HF was shown before, which would hang (docs/hostfactory.md: maxNumber)."""
    numbers = {template.id: template.max_number for template in valid}
    try:
        shown, remembered = call.state().note_shown(numbers)
    except (DirectoryError, StateError) as error:
        log.append(call.directories, "WARNING", "Could not note the maxNumbers shown", {"problem": str(error)})
        return numbers
    for name in (name for name in numbers if shown[name] != numbers[name]):
        facts = {"template": name, "file": numbers[name], "shown": shown[name], "remembered": remembered}
        log.append(call.directories, "WARNING", LOWERED, facts)
    return shown


def _available(call: ScriptCall) -> Mapping[str, int]:
    """How many more machines the caps leave to each template, as far as the loop has published it."""
    with contextlib.suppress(DirectoryError, StateError):
        return call.state().available()
    return {}


# --- requestMachines --------------------------------------------------------------------------------------------------


def request_machines(call: ScriptCall) -> str:
    """Records the request durably, then names it."""
    template, count, rc_account = documents.requested(call.document)
    provider = _check_template(call, template)
    state, provisioner = call.state(), call.directories.name
    recorded = state.record_request(provisioner, template, count, created_wall=time.time(), rc_account=rc_account)
    _note_read(call, provider)
    call.facts.update(request=recorded.id, template=template, count=count)
    return _accepted(recorded, f"Request recorded: {count} of {template}.")


def _note_read(call: ScriptCall, provider: Provider) -> None:
    """Leaves a mark of what was read. Only a hint for people: HF gets its answer also when that cannot be written."""
    try:
        call.state().note_read(provider.digests)
    except (DirectoryError, StateError) as error:
        log.append(call.directories, "WARNING", "Could not note what was read", {"problem": str(error)})


def _check_template(call: ScriptCall, name: str) -> Provider:
    provider = _load(call)
    template = provider.template(name)
    if template is None:
        names = ", ".join(template.id for template in provider.templates)
        raise call.document.expected("template.templateId", f"one of {names}", name)
    if template.max_number == 0:
        raise call.document.refused("template.templateId", f"maxNumber of {name} is 0: none may be requested")
    return provider


def _accepted(recorded: Recorded, message: str) -> str:
    return json.dumps({"message": _with_silence(message, recorded.silent), "requestId": recorded.id})


# --- getRequestStatus -------------------------------------------------------------------------------------------------


def get_request_status(call: ScriptCall) -> str:
    """What HF was told of each request that has ended; of the others what the loop published."""
    ids = documents.request_ids(call.document)
    answers, silent = call.state().poll([*filter(re.compile(OUR_ID).fullmatch, ids)])
    entries, unknown = [], 0
    for name in ids:
        unknown += name not in answers
        entries.append(
            _entry(name, answers[name], silent) if name in answers else _empty(name, "complete_with_error", UNKNOWN)
        )
    call.facts.update(requests=len(ids), unknown=unknown)
    return '{"requests": [' + ", ".join(entries) + "]}"


def _entry(name: str, answer: Answer | None, silent: float | None) -> str:
    """One entry of ``requests``. Published text is copied, and made anew only to say that the loop is down."""
    if answer is None:
        return _empty(name, "running", _with_silence(WAITING, silent))
    if answer.ended or not _is_silent(silent):
        return answer.text
    entry = json.loads(answer.text)
    return json.dumps(entry | {"message": _with_silence(entry["message"], silent)})


def _empty(name: str, status: str, message: str) -> str:
    return json.dumps({"requestId": name, "status": status, "message": message, "machines": []})


def _is_silent(silent: float | None) -> bool:
    return silent is not None and silent > SILENT_SECONDS


def _with_silence(message: str, silent: float | None) -> str:
    """The message, and that the loop is down when it is."""
    return f"The provisioner has not run for {silent:.0f} s. {message}".rstrip() if _is_silent(silent) else message


# --- requestReturnMachines --------------------------------------------------------------------------------------------


def request_return_machines(call: ScriptCall) -> str:
    """Records durably which machines HF gives back, known to us or not, then names the return."""
    hosts = documents.hosts(call.document)
    names = list(dict.fromkeys(hosts.machines))
    if not names:
        raise call.document.refused("machines", "the list is empty")
    state, provisioner = call.state(), call.directories.name
    recorded = state.record_return(provisioner, names, created_wall=time.time())
    call.facts.update(request=recorded.id, machines=len(names))
    disagreeing = {name: None for name, ours in zip(*hosts, strict=True) if name and short_name(name) != ours}
    if disagreeing:
        call.facts.update(name_is_not_machine_id=list(disagreeing))
    return _accepted(recorded, f"Return recorded; machines: {len(names)}.")


# --- getReturnRequests ------------------------------------------------------------------------------------------------


def get_return_requests(call: ScriptCall) -> str:
    """The hosts of HF's list that are lost and not yet given back."""
    listed = documents.listed(call.document)
    hosts = documents.Hosts([], []) if listed is None else listed
    names = dict.fromkeys(hosts.machines)
    state = call.state()
    losses = state.lost(hosts.machines)
    gone = dict.fromkeys((name, machine) for name, machine in zip(*hosts, strict=True) if machine in losses)
    if listed is not None:
        _note_inventory(call, state, names)
    call.facts.update(hosts=len(names), lost=len(gone))
    reported = [
        {"machine": name or machine, "machineId": machine, "gracePeriod": losses[machine].grace}
        for name, machine in gone
    ]
    message = _loss_message([f"{machine}: {losses[machine].cause}" for _, machine in gone])
    return json.dumps({"status": "complete", "message": message, "requests": reported})


def _loss_message(lost: list[str]) -> str:
    """How many and why: HF's entries of lost hosts have no place for a cause."""
    named = ", ".join(lost[:MAX_NAMED])
    more = f" and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
    return f"Lost hosts: {len(lost)}." + (f" {named}{more}." if named else "")


def _note_inventory(call: ScriptCall, state: ScriptState, names: Mapping[str, None]) -> None:
    """Notes what HF listed. Only a hint for the loop: HF gets its answer also when that cannot be written."""
    try:
        state.note_hosts(names)
    except StateUnwritable as error:
        log.append(call.directories, "WARNING", "Could not note the listed hosts", {"problem": str(error)})


# --- the call ---------------------------------------------------------------------------------------------------------

COMMANDS: Mapping[str, Callable[[ScriptCall], str]] = {
    "getAvailableTemplates": get_available_templates,
    "requestMachines": request_machines,
    "getRequestStatus": get_request_status,
    "requestReturnMachines": request_return_machines,
    "getReturnRequests": get_return_requests,
}

TAKES_HOSTS = frozenset({"requestReturnMachines", "getReturnRequests"})
"""The commands whose lists may name a whole grid: their documents are parsed piece by piece, when their hosts are read.
"""


def run(command: str, arguments: list[str], environment: Mapping[str, str]) -> int:
    """One call: prints the answer or the refusal on stdout, logs it, and returns the exit code."""
    started = time.monotonic()
    directories = Directories(environment)
    facts: dict[str, object] = {"command": command}
    level, text = "INFO", ""
    document, trace = None, ""
    try:
        arguments, trace = documents.recording(command, arguments)
        whole = command not in TAKES_HOSTS or trace != ""  # a trace holds documents, and no text that is none
        document = documents.read(command, arguments, may_be_empty=command == "getAvailableTemplates", whole=whole)
        text = COMMANDS[command](ScriptCall(document, directories, facts))
    except Refused as error:
        level, text = "WARNING", printable(str(error))
    except (DirectoryError, TemplatesError, StateError) as error:
        level, text = "ERROR", printable(str(error))
    if level != "INFO":
        facts["problem"] = text
    if not _printed(text):
        level, facts["problem"] = "ERROR", "stdout was closed before the answer was written"
    facts["seconds"] = round(time.monotonic() - started, 4)
    if trace and document is not None and not log.record(trace, command, document.root, text):
        facts["not_recorded"] = trace
    log.append(directories, level, "Answered a call" if level == "INFO" else "Refused a call", facts)
    return 0 if level == "INFO" else 1


def _printed(text: str) -> bool:
    """Writes the one line of the answer; False when nobody reads it. Python's own stdout would complain at exit."""
    rest = memoryview(text.encode("utf-8", "backslashreplace") + b"\n")
    try:
        while rest:
            try:
                rest = rest[os.write(1, rest) :]
            except BlockingIOError:  # a full pipe that does not block: wait until its reader has read some
                os.set_blocking(1, True)
    except OSError:
        return False
    return True


def main() -> None:
    """``python -c '…' NAME ARGUMENT…``: the entry of the shell scripts."""
    if sys.argv[1] == "check_install":
        from hf_scripts import (
            installation,
        )  # imported here alone: what it imports would cost every call some milliseconds

        sys.exit(installation.main(sys.argv[2:], os.environ))
    gc.disable()  # a call lives for milliseconds; looking for cycles among ten thousand hosts would cost some
    os._exit(
        run(sys.argv[1], sys.argv[2:], os.environ)
    )  # all is written: ending Python in order would cost as much again
