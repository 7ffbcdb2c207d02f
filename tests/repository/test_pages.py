"""Each command in README and docs is valid, each page is linked, and each linked file exists.

``tests/integration/test_pages_run.py`` runs the commands.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from provisioner.commands.cli import COMMANDS, commands_of, parser
from provisioner.commands.cli import Command as CommandParser
from provisioner.commands.holds import VERBS
from provisioner.state.database import SCHEMA
from tests.support.pages import ROOT, Command, commands, of, pages

SECTIONS = re.split(r"(?m)^## ", (ROOT / "docs" / "commands.md").read_text())[1:]
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
NAMES = {name for entry in COMMANDS for name in (entry.name, *entry.aliases)}
REASONS = {
    "asks a cloud; test_pages_run.py holds its options against the tool": "kubectl gcloud",
    "Symphony's own, which need a licence": "egosh egoconfig",
    "changes the host": "groupadd journalctl systemctl useradd usermod",
    "installs, from elsewhere": "apt-get buildah dnf docker git pip podman python3 rpm",
    "needs root, or what a host has of its own": "exportfs mount restorecon runuser semanage setfacl su sudo umount",
    "asks another host": "curl helm kustomize openssl rsync scp ssh terraform",
    "is in every shell, and has no effect that we promise": ". awk cat cd chgrp chmod chown cp date df diff do done du "
    "echo eval export find getent grep head id install kill ln ls lsof mkdir mv rm sed sh sha256sum sleep sort stat "
    "tail tar tee test touch uname until",
}
ELSEWHERE = {program: reason for reason, programs in REASONS.items() for program in programs.split()}
"""Programs that are not ours, by the reason why they are not run here."""
EXITS = re.compile(r"^Exit code", re.MULTILINE)


def test_the_page_of_commands_has_a_section_for_each_and_for_nothing_else() -> None:
    titles = [section.split()[0] for section in SECTIONS]
    assert titles[0] == "Holds"
    assert sorted(titles[1:]) == sorted(entry.name for entry in COMMANDS)


def test_each_command_has_a_call_and_says_what_its_exit_code_means() -> None:
    for section in SECTIONS[1:]:
        name = section.split()[0]
        shown = [call for command in of("", section) if not command.inline for call in command.calls]
        assert any(call[:2] == ["provisioner", name] for call in shown), name
        assert EXITS.search(section) or name in VERBS, name


@pytest.mark.parametrize(
    ("page", "most"), [("README.md", 1_000), ("docs/kubernetes-state.md", 1_500), ("docs/new-kind.md", 1_500)]
)
def test_the_first_page_of_a_reader_is_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text().split()) <= most


def test_the_page_of_backups_names_the_version_in_which_the_state_is_written() -> None:
    assert f"`meta.state.schema`, now {SCHEMA})" in (ROOT / "docs" / "backup.md").read_text()


@pytest.fixture(scope="module")
def known() -> dict[str, CommandParser]:
    """Return the parser of each command, by its name."""
    return {command.prog.split()[-1]: command for command in commands_of(parser())}


def test_each_command_line_of_ours_is_one_that_the_program_takes(known: dict[str, CommandParser]) -> None:
    checked = 0
    for command in commands():
        for call in command.calls:
            if call[0] != "provisioner" or call[1:] in (["--help"], ["--version"]):
                continue
            checked += 1
            if command.is_form or (command.inline and len(call) == 2):
                _hold_form(command, call, known)
            else:
                assert _taken(_arguments(call)), command.where
    assert checked > 100


def _arguments(call: list[str]) -> list[str]:
    """Return the arguments of a call. A redirection of the input or output ends the arguments."""
    for index, word in enumerate(call):
        if set(word) <= set("<>"):
            return call[1:index]
    return call[1:]


def _taken(arguments: list[str]) -> bool:
    try:
        parser().parse_args(arguments)
    except SystemExit:
        return False
    return True


def _hold_form(command: Command, call: list[str], known: dict[str, CommandParser]) -> None:
    """Check a command of a page that contains words for the reader to replace, such as ``NAME``. The command and its
    options must exist."""
    name = next(word for word in call[1:] if not word.startswith("-"))
    assert name in NAMES | {"COMMAND", "DEBUG"}, command.where
    if name in known:
        options = {option for action in known[name].actions() for option in action.option_strings}
        used = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", command.text))
        assert used <= options, command.where


def test_each_target_and_script_that_is_shown_exists() -> None:
    for command in commands():
        for program, *arguments in command.calls:
            if program == "make" and not command.is_form:
                named = [word for word in arguments if "=" not in word and not word.startswith("-")]
                assert set(named) <= TARGETS, command.where
            elif program.endswith(".sh") and program.startswith(("hf_scripts", "deploy")):
                assert os.access(ROOT / program, os.X_OK), command.where


def test_every_other_program_is_listed_with_the_reason_why_it_is_not_run() -> None:
    ours = re.compile(r"provisioner|make|(?:/opt/provisioner/)?(?:hf_scripts|deploy)/\S+\.(?:sh|py)|\S+/install\.sh")
    unknown = [
        command.where
        for command in commands()
        for program in command.programs
        if not ours.fullmatch(program) and (Path(program).name or program) not in ELSEWHERE
    ]
    assert unknown == [], "fix the line, or add the program to ELSEWHERE"


def test_each_path_of_the_repository_in_a_command_exists() -> None:
    tops = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    for command in commands():
        for call in command.calls:
            for word in call:
                top, slash, _ = word.partition("/")
                if slash and top in tops - {"build"} and not command.is_form:
                    assert (ROOT / word.partition("=")[0]).exists(), command.where


# --- pages ------------------------------------------------------------------------------------------------------------

LINK = re.compile(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"")


def links(page: Path) -> list[tuple[Path, str]]:
    """Return the files that a page links to, each with the heading that the link names."""
    found = [first or second for first, second in LINK.findall(page.read_text())]
    local = [link.partition("#") for link in found if not re.match(r"https?:|mailto:", link)]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in local]


def anchors(page: Path) -> set[str]:
    """Return the names by which links refer to a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_link_leads_to_a_file_and_a_heading() -> None:
    for page in [*pages(), ROOT / "ARCHITECTURE.md"]:
        for path, anchor in links(page):
            assert path.exists(), f"{page.name}: {path}"
            if anchor:
                assert anchor in anchors(path), f"{page.name}: {path.name}#{anchor}"


def test_each_page_is_found_from_readme() -> None:
    found, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page not in found:
            found.add(page)
            left += [path for path, _ in links(page) if path.suffix == ".md" and path.exists()]
    assert [page.name for page in pages() if page not in found] == []
