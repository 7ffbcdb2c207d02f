"""The command ``provisioner``. Exit codes: 0 fine, 1 a problem found, 2 wrong usage or configuration, 130 Ctrl-C."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner import __version__
from provisioner.backends import BackendError
from provisioner.files.atomic import StateError, StateUnreadable
from provisioner.hostfactory.environment import PlaceError, Places
from provisioner.hostfactory.templates import TemplatesError
from provisioner.interrupts import INTERRUPTED, orderly
from provisioner.settings.loader import load
from provisioner.settings.problems import ConfigError
from provisioner.settings.tree import Settings
from provisioner.state.directory import StateDir
from provisioner.telemetry import logs

if TYPE_CHECKING:
    from provisioner.model import Look
    from provisioner.state.recovery import Recovery
    from provisioner.telemetry.notes import Notes

log = logging.getLogger(__name__)

FINE, PROBLEM, WRONG = 0, 1, 2

EXIT_CODES = "Exit codes: 0 fine, 1 a problem was found, 2 wrong usage or configuration, 130 ended by Ctrl-C."

EVENTS = (
    "Print the messages of the Pub/Sub subscription and what each is good for. What is printed is taken: a loop that "
    "runs meanwhile gets the others only, and sees by looking what it would have been told."
)


class UsageError(Exception):
    """The call or its environment is wrong; the text says what to give."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; ends the process with one of the three codes."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    options = parser().parse_args(arguments)
    logs.configure(options.log_level)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except (ConfigError, UsageError, PlaceError, TemplatesError) as error:
        print(error, file=sys.stderr)
        return WRONG
    except BackendError as error:  # pools whose configuration leads nowhere
        print(error.failure.text, file=sys.stderr)
        return WRONG
    except StateError as error:
        print(error, file=sys.stderr)
        return PROBLEM
    return code


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="provisioner", description="HostFactory provisioner for Google Cloud.", epilog=EXIT_CODES
    )
    top.add_argument("--version", action="version", version=f"provisioner {__version__}")
    top.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default INFO")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(
        name: str, command: Callable[[argparse.Namespace], int], text: str, aliases: Sequence[str] = ()
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, aliases=aliases)
        made.set_defaults(command=command)
        return made

    _add_running(add)
    _add_looking(add)
    _add_site(add)
    _add_mending(add)
    return top


Add = Callable[..., argparse.ArgumentParser]
"""Adds a command: its name, its function, its text, and perhaps ``aliases``."""


def _add_running(add: Add) -> None:
    """What runs until it is ended."""
    loop = add("run", _run, "Run the loop: hold pressure until SIGTERM.")
    _add_config(loop)
    _add_state(loop)
    loop.add_argument("--once", action="store_true", help="one cycle on complete looks, then end")
    loop.add_argument("--dry-run", action="store_true", help="print what each cycle would do; write and touch nothing")
    loop.add_argument("--listen", metavar="HOST:PORT", help="address of metrics and health")
    demo = add("demo", _demo, "Play HostFactory against the embedded cloud, and judge each step.")
    demo.add_argument("--keep", action="store_true", help="keep cloud and loop running for you to play with")
    simulator = add("simulator", _simulator, "Run the embedded cloud.")
    _add_config(simulator)
    simulator.add_argument("--listen", metavar="HOST", default="127.0.0.1", help="default 127.0.0.1")
    simulator.add_argument("--unsafe-listen", action="store_true", help="allow a --listen that other machines reach")
    simulator.add_argument("--port", type=int, default=0, help="default 0: a free one")
    simulator.add_argument("--kubeconfig", type=Path, metavar="FILE", help="where to write it; default a new file")
    simulator.add_argument("--faults", type=Path, metavar="FILE", help="faults and timings, JSON or YAML")
    simulator.add_argument("--seed", type=int, default=0, help="default 0")


def _add_looking(add: Add) -> None:
    """A state directory: its beginning, and what is in it."""
    init = add("init", _init, "Create intent.json in a new state directory.", aliases=["initializeDB"])
    _add_config(init)
    _add_state(init)
    status = add("status", _status, "Show what the state files hold.")
    _add_state(status)
    _add_output(status)
    plan = add("plan", _plan, "Show what the next cycle would do; touches nothing.")
    _add_config(plan)
    _add_state(plan)
    _add_output(plan)


def _add_site(add: Add) -> None:
    """What surrounds the loop: messages, configuration, HostFactory's files and calls."""
    events = add("events", _events, EVENTS)
    _add_config(events)
    events.add_argument("--seconds", type=float, metavar="N", help="end after so long; default: when interrupted")
    _add_output(events)
    check = add("check", _check, "Check the configuration; every mistake at once.")
    check.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="provisioner.yaml or its directory")
    check.add_argument("--live", action="store_true", help="also ask the clouds whether machines can be made there")
    _add_output(check)
    rendered = add("render-hf", _render, "Write HostFactory's files for a provider instance, from one settings file.")
    rendered.add_argument("settings", type=Path, metavar="SETTINGS", help="YAML; see HostFactorySettings in render.py")
    rendered.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory, laid out as HF_TOP")
    replay = add("replay", _replay, "Play a recorded trace of HostFactory's calls against the scripts.")
    replay.add_argument("trace", type=Path, metavar="TRACE", help="Morgan Stanley's sqlite file, or JSON lines")
    replay.add_argument("--speed", type=float, default=1.0, help="times faster than recorded; default 1")
    replay.add_argument("--yes", action="store_true", help="also where a loop runs: it makes and deletes machines")
    replay.add_argument("--longest-gap", type=float, default=float("inf"), metavar="SECONDS", help="default: any")


def _add_mending(add: Add) -> None:
    """What changes state files beside the loop."""
    trim = add("trim", _trim, "Let ended requests leave the state files, as a running loop does by itself.")
    _add_config(trim)
    _add_state(trim)
    trim.add_argument("--dry-run", action="store_true", help="only show what would leave")
    _add_output(trim)
    recover = add(
        "recover",
        _recover,
        "Show what is wrong with the state files, why the brake is latched, and what a release sets going: which "
        "machines are deleted, and when, and which requests are cancelled. Changes nothing without a flag.",
    )
    _add_config(recover)
    _add_state(recover)
    recover.add_argument("--apply", action="store_true", help="write the files as shown; the brake stays as it is")
    recover.add_argument("--release-brake", action="store_true", help="let the loop release the brake")
    _add_output(recover)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE", help="default $HF_PROVIDER_CONFDIR/provisioner.yaml")


def _add_state(command: argparse.ArgumentParser) -> None:
    command.add_argument("--state-dir", type=Path, metavar="DIR", help="default $HF_PROVIDER_WORKDIR")


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", choices=["text", "json"], default="text", help="default text")


# --- where things are -------------------------------------------------------------------------------------------------


def _config_file(given: Path | None) -> Path:
    path = given or Path(Places(os.environ).conf)
    return path / "provisioner.yaml" if path.is_dir() else path


def _settings(given: Path | None) -> Settings:
    return load(_config_file(given), os.environ)


def _state(given: Path | None) -> StateDir:
    path = given or Path(Places(os.environ).state)
    if not path.is_dir():
        raise UsageError(
            f"{path}: no such directory; create it, owned by the user HostFactory runs as, or see --state-dir"
        )
    return StateDir(str(path))


def _print(options: argparse.Namespace, document: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str]) -> None:
    print(json.dumps(document, indent=2) if options.output == "json" else text(document))


# --- the commands -----------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from provisioner.commands.service import Service, dry_run
    from provisioner.loop.cycle import SupersededError
    from provisioner.settings.reload import Configuration
    from provisioner.telemetry.server import ListenError

    configuration = Configuration(_config_file(options.config), os.environ)
    state = _state(options.state_dir)
    try:
        if options.dry_run:
            dry_run(configuration.settings, state, once=options.once)
        else:
            service = Service(configuration, state, listen=options.listen)
            service.heed_signals()
            service.run(once=options.once)
            if service.interrupted:
                return INTERRUPTED
            if options.once and service.unseen():
                return PROBLEM
    except (ListenError, SupersededError) as error:
        print(error, file=sys.stderr)
        return PROBLEM
    return FINE


def _demo(options: argparse.Namespace) -> int:
    from provisioner.tools.demo import demo

    return demo(keep=options.keep)


def _simulator(options: argparse.Namespace) -> int:
    from provisioner.simulator.server import serve

    try:
        return serve(
            _settings(options.config),
            host=options.listen,
            port=options.port,
            unsafe_listen=options.unsafe_listen,
            kubeconfig=options.kubeconfig,
            faults_file=options.faults,
            seed=options.seed,
        )
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def _init(options: argparse.Namespace) -> int:
    settings = _settings(options.config)
    state = _state(options.state_dir)
    state.intent.create(settings.instance)
    print(f"Created {state.intent.path} for provider instance {settings.instance}.")
    return FINE


def _status(options: argparse.Namespace) -> int:
    from provisioner.commands import status

    document = status.status(_state(options.state_dir))
    _print(options, document, status.status_text)
    return FINE if status.status_is_fine(document) else PROBLEM


def _plan(options: argparse.Namespace) -> int:
    from provisioner.commands import inspection
    from provisioner.commands.service import preview

    looks, plan = preview(_settings(options.config), _state(options.state_dir))
    document = inspection.plan_document(plan, looks)
    _print(options, document, inspection.plan_text)
    return FINE if inspection.plan_is_fine(document) else PROBLEM


def _events(options: argparse.Namespace) -> int:
    from provisioner.commands.events import listen

    settings = _settings(options.config)
    if settings.events is None:
        raise UsageError(f"{_config_file(options.config)}: no section 'events', so there is nothing to listen to.")
    broken = listen(settings.events, settings.name_prefix, options.seconds, as_json=options.output == "json")
    if broken:
        print(broken, file=sys.stderr)
    return PROBLEM if broken else FINE


def _check(options: argparse.Namespace) -> int:
    from provisioner.commands import inspection
    from provisioner.hostfactory import templates
    from provisioner.settings.advice import advice

    settings = _settings(options.config)
    provider = templates.load(_config_file(options.config).parent, os.environ)
    try:
        document = inspection.check_document(settings, advice(settings, provider.templates))
    except (OSError, ValueError) as error:
        raise UsageError(f"The configuration changed while it was checked; check it again. ({error})") from error
    if options.live:
        from provisioner.commands.service import check_live

        document["findings"] = inspection.findings_document(check_live(settings, provider.templates))
    _print(options, document, inspection.check_text)
    return FINE if inspection.check_is_fine(document) else PROBLEM


def _render(options: argparse.Namespace) -> int:
    from provisioner.tools.render import render

    try:
        with orderly():
            written = render(options.settings, options.out)
    except OSError as error:
        raise UsageError(str(error)) from error
    print("\n".join(map(str, written)))
    return FINE


def _replay(options: argparse.Namespace) -> int:
    from provisioner.tools.replay import Replay, TraceError, loop_lives, read_trace, run_script

    if not (options.speed > 0 and options.longest_gap >= 0):  # nan is neither
        raise UsageError("--speed has to be above 0, --longest-gap at least 0")
    try:
        events = read_trace(options.trace)
    except TraceError as error:
        raise UsageError(str(error)) from error
    state = StateDir(Places(os.environ).state)
    if not options.yes and loop_lives(state):
        raise UsageError(
            f"{state.path}: a loop runs there, and would make machines for what is replayed; nothing was asked. "
            "Set HF_PROVIDER_WORKDIR to another directory, or give --yes."
        )
    replay = Replay(run_script, speed=options.speed, longest_gap=options.longest_gap)
    with orderly():
        replay.play(events)
    print(json.dumps(replay.report(), indent=2))
    return PROBLEM if any(replay.refused.values()) else FINE


def _trim(options: argparse.Namespace) -> int:
    from provisioner.commands import inspection
    from provisioner.commands.service import trim

    left = trim(_settings(options.config), _state(options.state_dir), dry_run=options.dry_run)
    _print(options, inspection.trim_document(left, dry_run=options.dry_run), inspection.trim_text)
    return FINE


def _recover(options: argparse.Namespace) -> int:
    from provisioner.commands import inspection, status
    from provisioner.state import recovery

    state = _state(options.state_dir)
    plan, looks = _recovery(options, state)
    memory = plan.files.memory if plan.files.fine("memory") else None
    released = status.released(state, memory, _notes(options, state), recovery.places(plan, looks))
    document = inspection.recovery_document(plan, looks, released)
    releases = options.release_brake and plan.releases(applied=options.apply)
    document["moved"] = recovery.apply(state, plan) if options.apply else ()
    document |= {"applied": options.apply, "released": releases}
    document["outcome"] = recovery.outcome(plan, applied=options.apply, release=options.release_brake)
    _print(options, document, inspection.recovery_text)
    sys.stdout.flush()  # who releases the brake has been told what that sets going
    if releases:
        state.ask_recovery()
    if options.output == "text":
        print(f"  {document['outcome']}")
    in_vain = options.release_brake and plan.keeps_brake(applied=options.apply)
    looked = not (options.apply or options.release_brake)
    return PROBLEM if in_vain or (looked and plan.wrong) else FINE


def _notes(options: argparse.Namespace, state: StateDir) -> Notes:
    """What the loop has left; where none has, the limits are those of the configuration, if it can be read."""
    from provisioner.telemetry.notes import Notes, read_notes, terms_of

    try:
        notes = read_notes(state)
    except StateUnreadable:  # it must not keep anyone from looking at the files that matter
        notes = Notes()
    try:
        return notes if notes.terms else replace(notes, terms=terms_of(_settings(options.config).limits()))
    except (ConfigError, PlaceError):
        return notes


def _recovery(options: argparse.Namespace, state: StateDir) -> tuple[Recovery, Mapping[str, Look]]:
    """What there is to recover. Pools are looked at, and a configuration is needed, only where intent is lost."""
    from provisioner.commands.service import look_once
    from provisioner.model import Snapshot
    from provisioner.state import recovery

    files = recovery.read_files(state)
    if files.fine("intent"):
        orphans = tuple(files.memory.orphans) if files.memory else ()
        return recovery.recovery(files, orphans, "", ""), {}
    settings = _settings(options.config)
    looks = look_once(settings)
    seen = {pool: look for pool, look in looks.items() if isinstance(look, Snapshot)}
    unseen = sorted(looks.keys() - seen.keys())
    if unseen and files.need_machines:
        raise StateError(
            f"{state.path}: no file knows every request, and these pools, whose machines tell, cannot be seen: "
            f"{', '.join(unseen)}. Nothing was written. Try again when they can be seen."
        )
    names = [name for snapshot in seen.values() for name in snapshot.machines]
    return recovery.recovery(files, names, settings.name_prefix, settings.instance), looks
