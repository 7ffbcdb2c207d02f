"""HostFactory's five commands. Each command reads a JSON document and state files. Each command prints a JSON document
within milliseconds (law: scripts answer from files).

A successful call prints JSON on stdout and ends with exit code 0. A refused call records no request, prints one line on
stdout and ends with exit code 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from hf_scripts import host_lists, input_documents, log
from hf_scripts.input_documents import Document, Refused
from provisioner.hostfactory import SILENT_SECONDS, Recorded, templates
from provisioner.hostfactory.provider_config import Directories, DirectoryError, TemplatesError
from provisioner.hostfactory.templates import Provider, Template
from provisioner.names import REQUEST_ID_LENGTH, RETURN_ID_PREFIX, format_printable, short_name
from provisioner.state.errors import StateError
from provisioner.state.opening import open_script_state

if TYPE_CHECKING:
    from provisioner.state.protocols import ScriptState

MAX_NAMED = 20
"""Maximum number of hosts that the message of getReturnRequests names with their causes. The list in the answer has all
hosts."""

OUR_ID = rf"({RETURN_ID_PREFIX})?[a-z0-9]{{{REQUEST_ID_LENGTH}}}"
"""Pattern of the request ids that the scripts print. An id of another form is unknown, and never becomes part of a file
name. The pattern is compiled at its first use, because not every script call has ids."""

LOWERED_MESSAGE = (
    "maxNumber is lower than HostFactory was shown: stop HostFactory, remove the file `remembered`, start HostFactory"
)
WAITING_MESSAGE = "Waiting for the provisioner."
UNKNOWN_MESSAGE = "The provisioner has no request with this id."


class ScriptCall(NamedTuple):
    """A call of a script, with the key-value pairs of its log line (``facts``)."""

    document: Document
    directories: Directories
    facts: dict[str, object]
    state: Callable[[], ScriptState]
    """A function that opens the recorded requests and the published answers, and raises the errors of
    ``open_script_state``."""

    def provider(self) -> Provider:
        """Read HF's provider config and templates file. Raises TemplatesError."""
        return templates.load(self.directories.conf, self.directories.environment, self.directories.config_file)

    @contextlib.contextmanager
    def noting(self, subject: str) -> Iterator[None]:
        """Run a ``with`` block that records a hint. If the block fails, log a warning and go on, because HF must get
        its answer even without this hint."""
        try:
            yield
        except (DirectoryError, StateError) as error:
            log.append(self.directories, "WARNING", f"Could not record {subject}", {"problem": str(error)})


# --- getAvailableTemplates --------------------------------------------------------------------------------------------


def get_available_templates(call: ScriptCall) -> str:
    """Return the document with the valid templates that HF asks for."""
    provider = call.provider()
    for problem in provider.problems:
        log.append(call.directories, "WARNING", "Ignored an invalid setting", {"problem": f"{problem.file}: {problem}"})
    unused_keys = [*provider.config.unused, *provider.config.unknown]
    if unused_keys:  # log it here, because HF calls this when it starts and hardly ever again
        log.append(call.directories, "INFO", "Settings that the scripts do not use", {"keys": unused_keys})
    asked = _select_templates(call, provider.templates)
    with call.noting("the configuration that was read"):
        call.state().note_read(provider.digests)
    numbers, available = _max_numbers(call, provider.templates), dict[str, int]()
    with contextlib.suppress(DirectoryError, StateError):
        available |= call.state().available()
    listed = [
        _with_lsf_names(call, template).document()
        | {"maxNumber": numbers[template.id]}
        | ({"availableNumber": available[template.id]} if template.id in available else {})
        for template in asked
    ]
    call.facts.update(templates=len(listed), mistakes=len(provider.problems))
    return json.dumps({"templates": listed, "message": "Get available templates success."})


def _with_lsf_names(call: ScriptCall, template: Template) -> Template:
    """Return the template. If the caller is LSF, add the attribute ``mem``, which is LSF's name for ``nram``."""
    if not call.directories.is_lsf:
        return template
    return template._replace(attributes={"mem": template.attributes["nram"], **template.attributes})


def _select_templates(call: ScriptCall, valid: Sequence[Template]) -> Sequence[Template]:
    """Return the templates that match one of HF's filters. If there is no filter, return all.

    Raises Refused if no template matches. An empty answer would make HF drop the provider until HF restarts
    (docs/hostfactory.md: no templates).
    """
    filters = input_documents.filters(call.document)
    fitting = [template for template in valid if any(template.fits(*wanted) for wanted in filters)]
    if filters and not fitting:
        names = ", ".join(template.id for template in valid)
        words = f"a filter that matches one of {names}"
        raise call.document.expected("templates", words, call.document.root["templates"])
    return fitting if filters else valid


def _max_numbers(call: ScriptCall, valid: Sequence[Template]) -> Mapping[str, int]:
    """Return the maxNumber of each template. If HF was shown a higher number before, return that higher number, because
    HF hangs if a maxNumber decreases (docs/hostfactory.md: maxNumber)."""
    numbers: Mapping[str, int] = {template.id: template.max_number for template in valid}
    shown, remembered = numbers, ""
    with call.noting("the maxNumbers shown"):
        shown, remembered = call.state().note_shown(numbers)
    for name in (name for name in numbers if shown[name] != numbers[name]):
        facts = {"template": name, "file": numbers[name], "shown": shown[name], "remembered": remembered}
        log.append(call.directories, "WARNING", LOWERED_MESSAGE, facts)
    return shown


# --- requestMachines --------------------------------------------------------------------------------------------------


def request_machines(call: ScriptCall) -> str:
    """Record the request durably. Then return the answer with the id of the request."""
    name, count, rc_account = input_documents.requested(call.document)
    provider = call.provider()
    template = provider.template(name)
    if template is None:
        names = ", ".join(template.id for template in provider.templates)
        raise call.document.expected("template.templateId", f"one of {names}", name)
    if template.max_number == 0:
        raise call.document.refused("template.templateId", f"maxNumber of {name} is 0, so no machine may be requested")
    state, provisioner = call.state(), call.directories.name
    with call.noting("the configuration that was read"):
        state.note_read(provider.digests)
    recorded = state.record_request(provisioner, name, count, created_wall=time.time(), rc_account=rc_account)
    call.facts.update(request=recorded.id, template=name, count=count)
    return _format_accepted(recorded, f"Request recorded: {count} of {name}.")


def _format_accepted(recorded: Recorded, message: str) -> str:
    return json.dumps({"message": _format_silence(recorded.silent_seconds) + message, "requestId": recorded.id})


def _format_silence(seconds: float | None) -> str:
    """Return a sentence that reports a silent loop; empty if the loop runs. ``seconds``: the time since the last sign
    of the loop. If this time is unknown (None), the loop counts as running."""
    is_silent = seconds is not None and seconds > SILENT_SECONDS
    return f"The provisioner has not run for {seconds:.0f} s. " if is_silent else ""


# --- getRequestStatus -------------------------------------------------------------------------------------------------


def get_request_status(call: ScriptCall) -> str:
    """Return the answer for each request: the recorded terminal answer if there is one, or else the answer that the
    loop published."""
    ids = input_documents.request_ids(call.document)
    answers, silent = call.state().poll([*filter(re.compile(OUR_ID).fullmatch, ids)])
    silence, entries = _format_silence(silent), []
    for name in ids:
        answer = answers.get(name)
        if name not in answers:
            entries.append(_empty(name, "complete_with_error", UNKNOWN_MESSAGE))
        elif answer is None:
            entries.append(_empty(name, "running", silence + WAITING_MESSAGE))
        elif silence and not answer.ended:  # a published text is changed only to say that the loop is down
            entry = json.loads(answer.text)
            entries.append(json.dumps(entry | {"message": (silence + entry["message"]).rstrip()}))
        else:
            entries.append(answer.text)
    call.facts.update(requests=len(ids), unknown=len(ids) - len(answers))
    return '{"requests": [' + ", ".join(entries) + "]}"


def _empty(name: str, status: str, message: str) -> str:
    return json.dumps({"requestId": name, "status": status, "message": message, "machines": []})


# --- requestReturnMachines --------------------------------------------------------------------------------------------


def request_return_machines(call: ScriptCall) -> str:
    """Record durably the machines that HF returns, known and unknown ones. Then return the answer with the id of the
    return request."""
    sent = host_lists.returned(call.document)
    names = list(dict.fromkeys(sent.machines))
    if not names:
        raise call.document.refused("machines", "the list is empty")
    state, provisioner = call.state(), call.directories.name
    recorded = state.record_return(provisioner, names, created_wall=time.time())
    call.facts.update(request=recorded.id, machines=len(names))
    disagreeing = {name: None for name, ours in zip(*sent, strict=True) if name and short_name(name) != ours}
    if disagreeing:
        call.facts.update(name_is_not_machine_id=list(disagreeing))
    return _format_accepted(recorded, f"Return recorded; machines: {len(names)}.")


# --- getReturnRequests ------------------------------------------------------------------------------------------------


def get_return_requests(call: ScriptCall) -> str:
    """Return the answer that lists the hosts whose loss the loop has published. Only hosts in HF's list are included.
    Hosts that HF has already returned are left out."""
    listed = host_lists.listed(call.document)
    sent = host_lists.Hosts([], []) if listed is None else listed
    names = dict.fromkeys(sent.machines)
    state = call.state()
    losses = state.lost(sent.machines)
    gone = dict.fromkeys((name, machine) for name, machine in zip(*sent, strict=True) if machine in losses)
    if listed is not None:
        with call.noting("the listed hosts"):
            state.note_hosts(names)
    call.facts.update(hosts=len(names), lost=len(gone))
    reported = [
        {"machine": name or machine, "machineId": machine, "gracePeriod": losses[machine].grace}
        for name, machine in gone
    ]
    message = f"Hosts to return: {len(gone)}."
    if gone:  # HF's entries of lost hosts have no field for a cause.
        named = ", ".join([f"{machine}: {losses[machine].cause}" for _, machine in gone][:MAX_NAMED])
        message += f" {named}{f' and {len(gone) - MAX_NAMED} more' if len(gone) > MAX_NAMED else ''}."
    return json.dumps({"status": "complete", "message": message, "requests": reported})


# --- the call ---------------------------------------------------------------------------------------------------------

COMMANDS: Mapping[str, Callable[[ScriptCall], str]] = {
    "getAvailableTemplates": get_available_templates,
    "requestMachines": request_machines,
    "getRequestStatus": get_request_status,
    "requestReturnMachines": request_return_machines,
    "getReturnRequests": get_return_requests,
}

HOST_LIST_COMMANDS = frozenset({"requestReturnMachines", "getReturnRequests"})
"""Commands whose document may list all hosts of a grid. The list is parsed in pieces, and only when its hosts are
needed."""


Commands = Mapping[str, Callable[[ScriptCall], str]]


def run(command: str, arguments: list[str], environment: Mapping[str, str], commands: Commands = COMMANDS) -> int:
    """Run one script call: print the answer or the refusal on stdout, log the call and return the exit code.
    ``commands``: the functions by their names."""
    started = time.monotonic()
    directories = Directories(environment)
    facts: dict[str, object] = {"command": command}
    level, text = "INFO", ""
    document = None
    # A call opens the state only once, because a state in a Kubernetes API needs a connection.
    state = cache(partial(open_script_state, directories))
    try:
        may_be_empty, whole = command == "getAvailableTemplates", command not in HOST_LIST_COMMANDS
        document = input_documents.read(command, arguments, may_be_empty=may_be_empty, whole=whole)
        text = commands[command](ScriptCall(document, directories, facts, state))
    except Refused as error:
        level, text = "WARNING", format_printable(str(error))
    except (DirectoryError, TemplatesError, StateError) as error:
        level, text = "ERROR", format_printable(str(error))
    if level != "WARNING":  # a wrong document says nothing about the installation
        # A hint for operators must not change the answer.
        with contextlib.suppress(DirectoryError, TemplatesError, StateError):
            state().note_refusal(command, "" if level == "INFO" else text)
    if level != "INFO":
        facts["problem"] = text
    if not _write_answer(text):
        level, facts["problem"] = "ERROR", "stdout was closed before the answer was written"
    facts["seconds"] = round(time.monotonic() - started, 4)
    if document and document.trace and not log.record(document.trace, command, document.root, text):
        facts["not_recorded"] = document.trace
    log.append(directories, level, "Answered a call" if level == "INFO" else "Refused a call", facts)
    return 0 if level == "INFO" else 1


def _write_answer(text: str) -> bool:
    """Write the answer with ``os.write``. Return False if stdout is closed. ``print`` would report a closed stdout only
    when the process ends."""
    rest = memoryview(text.encode("utf-8", "backslashreplace") + b"\n")
    try:
        while rest:
            try:
                rest = rest[os.write(1, rest) :]
            except BlockingIOError:  # a non-blocking pipe is full: wait for its reader
                os.set_blocking(1, True)
    except OSError:
        return False
    return True
