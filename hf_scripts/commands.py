"""HostFactory's five commands: one JSON document in, the state files, one JSON document out.

No cloud is asked and nothing waits for the loop: an answer takes milliseconds whatever the clouds do (DESIGN law 9).
A call either succeeds (JSON on stdout, exit 0) or is refused (one line of text on stdout, exit 1, nothing recorded).
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
from typing import NamedTuple

from hf_scripts import documents, log
from hf_scripts.documents import Document, Refused
from provisioner.files.atomic import StateError, StateMissing, StateUnwritable
from provisioner.hostfactory import templates
from provisioner.hostfactory.answer import Answer, Loss
from provisioner.hostfactory.environment import PlaceError, Places
from provisioner.hostfactory.templates import Template
from provisioner.names import REQUEST_ID_LENGTH, RETURN_ID_PREFIX, short_name
from provisioner.state.directory import StateDir

SILENT_SECONDS = 60.0
"""Without a heartbeat for longer than this the loop is taken to be down: it beats every few seconds."""

MAX_NAMED = 20
"""Lost hosts that a message names with their causes; all are in the list."""

OUR_ID = rf"({RETURN_ID_PREFIX})?[a-z0-9]{{{REQUEST_ID_LENGTH}}}"
"""The shape of the ids we print. Any other is unknown without a look, and never becomes a file's name.

Not compiled here: that costs a call as much as reading its input, and not every call has ids.
"""

LOWERED = "maxNumber is lower than HostFactory was shown: stop it, remove the remembered file, start it"
WAITING = "Waiting for the provisioner."
UNKNOWN = "The provisioner has no request with this id."


class Call(NamedTuple):
    """One call of HF, and what its log line will say beside the command and the outcome."""

    document: Document
    places: Places
    facts: dict[str, object]

    def state(self) -> StateDir:
        """The state directory; opening it touches nothing."""
        return StateDir(self.places.state)


class LostHost(NamedTuple):
    """A host that HF lists and has to give back."""

    name: str
    """As HF sent it; may be empty."""
    machine: str
    loss: Loss


# --- getAvailableTemplates --------------------------------------------------------------------------------------------


def get_available_templates(call: Call) -> str:
    """The valid templates of the file; of these, those HF asks for."""
    provider = templates.load(call.places.conf, call.places.environment)
    for mistake in provider.mistakes:
        log.append(call.places, "WARNING", "Left out a setting", {"problem": str(mistake)})
    without_use = [*provider.config.unused, *provider.config.unknown]
    if without_use:  # HF calls this when it starts and hardly ever again: a good place to say it once
        log.append(call.places, "INFO", "Settings without use here", {"keys": without_use})
    asked = _asked_for(call, provider.templates)
    numbers, available = _max_numbers(call, provider.templates), _available(call)
    listed = [
        _named_for(call, template).document()
        | {"maxNumber": numbers[template.id]}
        | ({"availableNumber": available[template.id]} if template.id in available else {})
        for template in asked
    ]
    call.facts.update(templates=len(listed), mistakes=len(provider.mistakes))
    return json.dumps({"templates": listed, "message": "Get available templates success."})


def _named_for(call: Call, template: Template) -> Template:
    """LSF calls memory ``mem``."""
    if not call.places.lsf:
        return template
    return template._replace(attributes={"mem": template.attributes["nram"], **template.attributes})


def _asked_for(call: Call, known: Sequence[Template]) -> Sequence[Template]:
    """Those that one of HF's filters fits. None is no answer: HF would drop the provider until it restarts."""
    filters = documents.filters(call.document)
    found = [template for template in known if any(template.fits(*wanted) for wanted in filters)]
    if filters and not found:
        names = ", ".join(template.id for template in known)
        raise call.document.expected("templates", f"what fits one of {names}", call.document.root["templates"])
    return found if filters else known


def _max_numbers(call: Call, known: Sequence[Template]) -> dict[str, int]:
    """Each maxNumber, but none lower than HF was shown before: it hangs on that while it runs (interface §1.1)."""
    numbers = {template.id: template.max_number for template in known}
    try:
        state = call.state()
        before = state.announced.read()
        shown = {name: templates.higher(number, before.get(name, number)) for name, number in numbers.items()}
        if before | shown != before:
            state.announced.write(before | shown)
    except (PlaceError, StateError) as error:
        log.append(call.places, "WARNING", "Could not note the maxNumbers shown", {"problem": str(error)})
        return numbers
    for name in (name for name in numbers if shown[name] != numbers[name]):
        facts = {"template": name, "file": numbers[name], "shown": shown[name], "remembered": state.announced.path}
        log.append(call.places, "WARNING", LOWERED, facts)
    return shown


def _available(call: Call) -> dict[str, int]:
    """How many more machines the caps leave to each template, as far as the loop has published it."""
    with contextlib.suppress(PlaceError, StateError):
        return call.state().status.read_available()
    return {}


# --- requestMachines --------------------------------------------------------------------------------------------------


def request_machines(call: Call) -> str:
    """Records the request durably, then names it."""
    wish = documents.wish(call.document)
    _check_template(call, wish.template)
    state = call.state()
    with state.intent.additions(create_for=call.places.name) as intent:
        request = intent.add_request(wish.template, wish.machines, created_wall=time.time(), rc_account=wish.rc_account)
    call.facts.update(request=request, template=wish.template, count=wish.machines)
    return _accepted(state, request, f"Request recorded: {wish.machines} of {wish.template}.")


def _check_template(call: Call, name: str) -> None:
    provider = templates.load(call.places.conf, call.places.environment)
    template = provider.template(name)
    if template is None:
        known = ", ".join(template.id for template in provider.templates)
        raise call.document.expected("template.templateId", f"one of {known}", name)
    if template.max_number == 0:
        raise call.document.refused("template.templateId", f"maxNumber of {name} is 0: none may be requested")


def _accepted(state: StateDir, request: str, message: str) -> str:
    silent = state.heartbeat.age_against(state.intent.path)
    return json.dumps({"message": _with_silence(message, silent), "requestId": request})


# --- getRequestStatus -------------------------------------------------------------------------------------------------


def get_request_status(call: Call) -> str:
    """What HF was told of each request that has ended; of the others what the loop published."""
    ids = documents.request_ids(call.document)
    state = call.state()
    found, touched = _polled(state, [name for name in ids if re.fullmatch(OUR_ID, name)])
    for name, answer in found.items():
        if answer is not None and answer.ended:
            # Before it is printed: whatever becomes of the other files, no later call says anything else (law 8).
            found[name] = Answer(state.told.tell(name, answer.text), ended=True)
    silent = state.heartbeat.loop_silent_for(touched) if touched else None
    unknown = [name for name in ids if name not in found]
    call.facts.update(requests=len(ids), unknown=len(unknown))
    entries = [_entry(name, found[name], silent) if name in found else _unknown(name) for name in ids]
    return '{"requests": [' + ", ".join(entries) + "]}"


def _polled(state: StateDir, ids: list[str]) -> tuple[dict[str, Answer | None], int]:
    """The answers of the known ids, each read after its ``seen`` was touched; and when that was, in ns (0: never).

    The loop publishes that it cancels, then looks at ``seen``; we touch ``seen``, then look at the answer: one of the
    two notices the other. At the first poll of an id there is no ``seen`` yet, and only a known id may get one.
    """
    polled_before = [name for name in ids if os.path.exists(os.path.join(state.seen.path, name))]
    marks = [state.seen.touch(name) for name in polled_before]
    found = _answers(state, ids)
    first_polled = [name for name in found if name not in polled_before]
    if first_polled:
        marks += [state.seen.touch(name) for name in first_polled]
        found = _answers(state, ids)
    return found, max(marks, default=0)


def _answers(state: StateDir, ids: list[str]) -> dict[str, Answer | None]:
    """What is settled of the ids; of the others what is published."""
    settled = {name: answer for name in ids if (answer := state.told.settled(name)) is not None}
    return settled | _published(state, [name for name in ids if name not in settled])


def _published(state: StateDir, ids: list[str]) -> dict[str, Answer | None]:
    """The published answers; None for what is recorded and not yet published; nothing for what is unknown."""
    if not ids:
        return {}
    found: dict[str, Answer | None] = {}
    # Before the loop's first cycle there are no answers; intent, read next, says so when the whole state is missing.
    with contextlib.suppress(StateMissing):
        found.update(state.status.read_answers(ids))
    unpublished = [name for name in ids if name not in found]
    return found | dict.fromkeys(state.intent.find(unpublished)) if unpublished else found


def _entry(name: str, answer: Answer | None, silent: float | None) -> str:
    """One entry of ``requests``. Published text is copied, and made anew only to say that the loop is down."""
    if answer is None:
        return _running(name, _with_silence(WAITING, silent))
    if answer.ended or not _is_silent(silent):
        return answer.text
    entry = json.loads(answer.text)
    return json.dumps(entry | {"message": _with_silence(entry["message"], silent)})


def _running(name: str, message: str) -> str:
    return json.dumps({"requestId": name, "status": "running", "message": message, "machines": []})


def _unknown(name: str) -> str:
    return json.dumps({"requestId": name, "status": "complete_with_error", "message": UNKNOWN, "machines": []})


def _is_silent(silent: float | None) -> bool:
    return silent is not None and silent > SILENT_SECONDS


def _with_silence(message: str, silent: float | None) -> str:
    """The message, and that the loop is down when it is."""
    return f"The provisioner has not run for {silent:.0f} s. {message}".rstrip() if _is_silent(silent) else message


# --- requestReturnMachines --------------------------------------------------------------------------------------------


def request_return_machines(call: Call) -> str:
    """Records durably which machines HF gives back, known to us or not, then names the return."""
    hosts = documents.hosts(call.document)
    names = list(dict.fromkeys(hosts.machines))
    if not names:
        raise call.document.refused("machines", "the list is empty")
    state = call.state()
    with state.intent.additions(create_for=call.places.name) as intent:
        request = intent.add_return(names, created_wall=time.time())
    call.facts.update(request=request, machines=len(names))
    disagreeing = {name: None for name, ours in zip(*hosts, strict=True) if name and short_name(name) != ours}
    if disagreeing:
        call.facts.update(name_is_not_machine_id=list(disagreeing))
    return _accepted(state, request, f"Return recorded; machines: {len(names)}.")


# --- getReturnRequests ------------------------------------------------------------------------------------------------


def get_return_requests(call: Call) -> str:
    """Of the hosts HF lists, those that are lost and not yet given back."""
    listed = documents.listed(call.document)
    hosts = documents.Hosts([], []) if listed is None else listed
    names = dict.fromkeys(hosts.machines)
    state = call.state()
    lost = _lost_hosts(state, hosts)
    if listed is not None:
        _note_inventory(call, state, names)
    call.facts.update(hosts=len(names), lost=len(lost))
    reported = [
        {"machine": host.name or host.machine, "machineId": host.machine, "gracePeriod": host.loss.grace}
        for host in lost
    ]
    return json.dumps({"status": "complete", "message": _loss_message(lost), "requests": reported})


def _loss_message(lost: list[LostHost]) -> str:
    """How many and why: HF's entries of lost hosts have no place for a cause."""
    named = ", ".join(f"{host.machine}: {host.loss.cause}" for host in lost[:MAX_NAMED])
    more = f" and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
    return f"Lost hosts: {len(lost)}." + (f" {named}{more}." if named else "")


def _note_inventory(call: Call, state: StateDir, names: Mapping[str, None]) -> None:
    """Notes what HF listed. Only a hint for the loop: HF gets its answer also when that cannot be written."""
    try:
        state.inventory.note(names)
    except StateUnwritable as error:
        log.append(call.places, "WARNING", "Could not note the listed hosts", {"problem": str(error)})


def _lost_hosts(state: StateDir, hosts: documents.Hosts) -> list[LostHost]:
    """The lost ones among ``hosts`` that were not given back, each once."""
    try:
        lost = state.status.read_lost()
    except StateMissing:
        if not os.path.isdir(state.path):
            raise
        lost = {}  # before the loop's first cycle, or until it has made the file again: nobody guesses
    found = dict.fromkeys((name, machine) for name, machine in zip(*hosts, strict=True) if machine in lost)
    returned = state.intent.returned_names() if found else frozenset()
    return [LostHost(name, machine, lost[machine]) for name, machine in found if machine not in returned]


# --- the call ---------------------------------------------------------------------------------------------------------

COMMANDS: Mapping[str, Callable[[Call], str]] = {
    "getAvailableTemplates": get_available_templates,
    "requestMachines": request_machines,
    "getRequestStatus": get_request_status,
    "requestReturnMachines": request_return_machines,
    "getReturnRequests": get_return_requests,
}

TAKES_HOSTS = frozenset({"requestReturnMachines", "getReturnRequests"})
"""What HF may hand a whole grid to: such a document is not parsed before its hosts are asked for, piece by piece."""


def run(command: str, arguments: list[str], environment: Mapping[str, str]) -> int:
    """One call: prints the answer or the refusal on stdout, logs it, and returns the exit code."""
    started = time.monotonic()
    places = Places(environment)
    facts: dict[str, object] = {"command": command}
    level, text = "INFO", ""
    document, trace = None, ""
    try:
        arguments, trace = documents.recording(command, arguments)
        whole = command not in TAKES_HOSTS or trace != ""  # a trace holds documents, and nothing that is none
        document = documents.read(command, arguments, may_be_empty=command == "getAvailableTemplates", whole=whole)
        text = COMMANDS[command](Call(document, places, facts))
    except Refused as error:
        level, text = "WARNING", documents.printable(str(error))
    except (PlaceError, templates.TemplatesError, StateError) as error:
        level, text = "ERROR", documents.printable(str(error))
    if level != "INFO":
        facts["problem"] = text
    if not _printed(text):
        level, facts["problem"] = "ERROR", "stdout was closed before the answer was written"
    facts["seconds"] = round(time.monotonic() - started, 4)
    if trace and document is not None and not log.record(trace, command, document.root, text):
        facts["not_recorded"] = trace
    log.append(places, level, "Answered a call" if level == "INFO" else "Refused a call", facts)
    return 0 if level == "INFO" else 1


def _printed(text: str) -> bool:
    """Writes the one line of the answer; False when nobody reads it. Python's own stdout would complain at exit."""
    rest = memoryview(text.encode("utf-8", "backslashreplace") + b"\n")
    try:
        while rest:
            try:
                rest = rest[os.write(1, rest) :]
            except BlockingIOError:  # a pipe that its maker told not to wait, and that is full: he reads on
                os.set_blocking(1, True)
    except OSError:
        return False
    return True


def main() -> None:
    """``python -c '…' NAME ARGUMENT…``: the entry of the shell scripts."""
    if sys.argv[1] == "check_install":
        from hf_scripts import installation  # only here: what it imports would cost every call some milliseconds

        sys.exit(installation.main(sys.argv[2:], os.environ))
    gc.disable()  # a call lives for milliseconds; looking for cycles among ten thousand hosts would cost some
    os._exit(run(sys.argv[1], sys.argv[2:], os.environ))  # all is written: taking Python apart would cost as much again
