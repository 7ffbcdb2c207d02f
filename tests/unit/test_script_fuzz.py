"""Whatever the scripts are given: an answer by its schema or one line of refusal; a record exactly where an answer is.

Random documents, recorded documents with something changed, recorded documents with bytes changed; the same for the
templates file, the provider config and the state files.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_scripts.commands import COMMANDS
from provisioner.hostfactory.answer import Answer
from tests.support.hostfactory.in_process import Here, asking, entry, publish
from tests.support.hostfactory.provider import GOLDEN, TEMPLATES, requesting
from tests.support.hostfactory.schemas import check_output, parsed

FUZZ = settings(
    max_examples=50,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

KEYS = st.sampled_from(
    (
        *("template", "templateId", "machineCount", "requests", "requestId", "machines", "name", "machineId"),
        *("templates", "attributes", "ncpus", "maxNumber", "rc_account", "userData", ""),
    )
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 3),
    st.sampled_from([10**30, -(10**400), 100_000, 100_001]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["T1", "T2", "T0", "3", "abcdefghij", "../x", "a.b", ".", "\ud800", "é\n", "\0", "x" * 300]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=3)
RECORDED = [json.loads(file.read_text()) for file in sorted(GOLDEN.glob("*-input*.json"))]


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, capfd)


def judge(hf: Here, name: str, *arguments: str) -> None:
    """Calls once, and holds what comes to the rule."""
    for file in ("intent.json", "intent.json.lock"):
        (hf.work / file).unlink(missing_ok=True)
    code, out = hf.ask(name, *arguments)
    requests, returns = hf.recorded()
    assert code in (0, 1)
    assert "\n" not in out
    if code == 1:
        assert out, "a refusal says why"
        assert (requests, returns) == ({}, {}), "a record without an answer"
        return
    answer = parsed(out)
    check_output(name, answer)
    records = [*requests, *returns]
    assert records == ([answer["requestId"]] if name.startswith("request") else []), "an answer without its record"


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within a document."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def changed(document: Any, chance: int, what: object) -> Any:
    """The document with one of its values taken out, doubled, or replaced."""
    document = copy.deepcopy(document)
    leaves = list(places(document))
    if not leaves:
        return what
    container, key = leaves[chance % len(leaves)]
    if chance % 3 == 0:
        del container[key]
    elif chance % 3 == 1 and isinstance(container, list):
        container.append(container[key])
    else:
        container[key] = what
    return document


@pytest.mark.parametrize("name", COMMANDS)
@FUZZ
@given(document=DOCUMENTS)
def test_any_document_is_answered_or_refused(hf: Here, name: str, document: dict[str, object]) -> None:
    judge(hf, name, json.dumps(document))


@pytest.mark.parametrize("name", COMMANDS)
@FUZZ
@given(document=st.sampled_from([*RECORDED, requesting("T1", 3)]), chance=st.integers(0, 200), what=VALUES)
def test_a_recorded_document_with_one_thing_changed_is_answered_or_refused(
    hf: Here, name: str, document: object, chance: int, what: object
) -> None:
    judge(hf, name, json.dumps(changed(document, chance, what)))


@pytest.mark.parametrize("name", COMMANDS)
@FUZZ
@given(
    document=st.sampled_from([*RECORDED, requesting()]),
    at=st.floats(0, 1),
    cut=st.integers(0, 9),
    put=st.binary(max_size=4),
)
def test_a_recorded_document_with_bytes_changed_is_answered_or_refused(
    hf: Here, name: str, document: object, at: float, cut: int, put: bytes
) -> None:
    text = json.dumps(document, indent="\t").encode()
    place = int(at * len(text))
    hf.input.write_bytes(text[:place] + put + text[place + cut :])
    judge(hf, name, "-f", str(hf.input))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("depth", [100, 300, 900, 990, 1000, 2000, 100_000])
def test_a_document_as_deep_as_it_may_be_is_answered_or_refused(hf: Here, name: str, depth: int) -> None:
    for key in ("template", "requests", "machines", "templates", "x"):
        judge(hf, name, f'{{"{key}": ' + "[" * depth + "]" * depth + "}")


@FUZZ
@given(chance=st.integers(0, 200), what=VALUES, name=st.sampled_from(["getAvailableTemplates", "requestMachines"]))
def test_any_templates_file_is_used_or_refused(hf: Here, chance: int, what: object, name: str) -> None:
    (hf.work / "announced.json").unlink(missing_ok=True)
    hf.templates_file.write_text(json.dumps(changed(TEMPLATES, chance, what)))
    judge(hf, name, json.dumps(requesting("T1", 1) if name == "requestMachines" else {}))


CONFIG = {"LOG_LEVEL": "INFO", "LOG_MAX_FILE_SIZE": 1, "LOG_MAX_ROTATE": 2, "HF_TEMPLATES_FILENAME": "", "LOGFILE": ""}


@FUZZ
@given(chance=st.integers(0, 50), what=LEAVES | DOCUMENTS, name=st.sampled_from(list(COMMANDS)))
def test_any_provider_config_is_used_or_refused(hf: Here, chance: int, what: object, name: str) -> None:
    if what == "../x":  # a log's place is the site's choice, and it would be taken
        what = None
    (hf.conf / "demoinstprov_config.json").write_text(json.dumps(changed(CONFIG, chance, what)))
    documents = {"requestMachines": requesting("T1", 1), "getRequestStatus": asking("abcdefghij")}
    judge(hf, name, json.dumps(documents.get(name, {"machines": {"name": "a"}})))


DAMAGES = {
    "cut off": lambda content, at: content[:at],
    "a block of zeros": lambda content, at: content[:at] + b"\0" * 16 + content[at + 16 :],
    "zeros at its end": lambda content, at: content[:at].ljust(len(content), b"\0"),
    "its end twice": lambda content, at: content + content[at:],
}
"""What crashes, full disks and careless copies leave of a file."""


@pytest.mark.parametrize("file", ["status.json", "intent.json", "announced.json", "hf-inventory.json"])
@settings(FUZZ, max_examples=25)
@given(damage=st.sampled_from(list(DAMAGES)), share=st.floats(0, 0.999), name=st.sampled_from(list(COMMANDS)))
def test_a_damaged_state_file_is_exit_1_or_does_not_matter(
    hf: Here, file: str, damage: str, share: float, name: str
) -> None:
    for older in hf.work.glob("*.json*"):
        older.unlink()
    request = hf.answer("requestMachines", requesting())["requestId"]
    publish(hf, {request: Answer(entry(request, "complete"), ended=True)}, {"a": 0}, {"T1": 3})
    hf.answer("getAvailableTemplates", {})
    hf.answer("getReturnRequests", {"machines": [{"name": "a"}]})
    content = (hf.work / file).read_bytes()
    damaged = DAMAGES[damage](content, int(share * len(content)))
    (hf.work / file).write_bytes(damaged)
    documents = {"requestMachines": requesting(), "getRequestStatus": asking(request), "getAvailableTemplates": {}}
    code, out = hf.ask(name, json.dumps(documents.get(name, {"machines": {"name": "b"}})))
    if code == 0:
        check_output(name, parsed(out))
    else:
        assert (code, "\n" in out, file in out) == (1, False, True)
    if (name, file) != ("getReturnRequests", "hf-inventory.json"):
        assert (hf.work / file).read_bytes() == damaged
