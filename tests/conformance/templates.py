"""Cases 23 to 32 of the conformance checklist: getAvailableTemplates."""

from __future__ import annotations

from tests.conformance.stage import Cases, Grid, template
from tests.support.hostfactory.provider import TEMPLATES

CASES = Cases()
case = CASES.case


def listed(hf: Grid, document: object | None = None) -> dict[str, dict[str, object]]:
    """Return the templates that HF gets, by templateId."""
    answer = hf.call("getAvailableTemplates", document or {})
    return {shown["templateId"]: shown for shown in answer["templates"]}


def refusal(hf: Grid) -> str:
    return hf.run(hf.command("getAvailableTemplates", {})).refusal


@case(23, "{} → all templates, numbers quoted in tagged arrays", loop=False)
def all_of_them(hf: Grid) -> None:
    by_id = listed(hf)
    assert list(by_id) == ["T1", "T2", "T0"]
    for shown, given in zip(by_id.values(), TEMPLATES["templates"], strict=True):
        assert shown == given | {"attributes": given["attributes"] | {"ncores": ["Numeric", "1"]}}


@case(24, "a filter that names T1 → at least T1", loop=False)
def filtered(hf: Grid) -> None:
    entry = {"templateId": "T1", "maxNumber": 10, "attributes": TEMPLATES["templates"][0]["attributes"]}
    assert "T1" in listed(hf, {"templates": [entry]})


@case(25, "bare values in the file → tagged on the wire", loop=False)
def bare_values(hf: Grid) -> None:
    hf.write_templates(template("T1", attributes={"type": "X86_64", "ncpus": 4, "nram": "8192"}))
    attributes = listed(hf)["T1"]["attributes"]
    assert attributes == {
        "type": ["String", "X86_64"],
        "ncpus": ["Numeric", "4"],
        "nram": ["Numeric", "8192"],
        "ncores": ["Numeric", "1"],
    }


@case(26, "the file is invalid JSON → exit 1, not an empty list", loop=False)
def invalid_file(hf: Grid) -> None:
    hf.templates_file.write_text('{"templates": [')
    assert refusal(hf).startswith(f"{hf.templates_file}: not JSON")


@case(27, "the file lists no template → exit 1 with a message", loop=False)
def no_template(hf: Grid) -> None:
    hf.write_templates()
    assert refusal(hf) == f"{hf.templates_file}: templates: the list is empty"


@case(28, "one invalid template among good ones → the good ones, a warning in the log", loop=False)
def one_invalid(hf: Grid) -> None:
    hf.write_templates(template("T1"), template("T3", maxNumber="many"))
    assert list(listed(hf)) == ["T1"]
    [warning] = [line for line in hf.log if line["severity"] == "WARNING"]
    assert warning["problem"].startswith(f"{hf.templates_file}: templates[1].maxNumber: ")


@case(29, "a templateId twice, of illegal characters, too long → left out, logged", loop=False)
def wrong_ids(hf: Grid) -> None:
    hf.write_templates(
        template("T1"), template("T1", maxNumber=3), template("T 1"), template("T" * 65), template("T" * 64)
    )
    by_id = listed(hf)
    assert list(by_id) == ["T1", "T" * 64]
    assert by_id["T1"]["maxNumber"] == 10
    places = [line["problem"].split(": ")[1] for line in hf.log if line["severity"] == "WARNING"]
    assert places == [f"templates[{index}].templateId" for index in (1, 2, 3)]


@case(30, "maxNumber lowered while HF runs → the announced one stands, a warning says so; raised → raised", loop=False)
def lowered(hf: Grid) -> None:
    assert listed(hf)["T1"]["maxNumber"] == 10
    hf.write_templates(template("T1", maxNumber=4), template("T2", maxNumber=7), template("T3", maxNumber=1))
    assert [shown["maxNumber"] for shown in listed(hf).values()] == [10, -1, 1]
    warnings = [line for line in hf.log if line["severity"] == "WARNING"]
    assert [(line["template"], line["file"], line["shown"]) for line in warnings] == [("T1", 4, 10), ("T2", 7, -1)]
    hf.write_templates(template("T1", maxNumber=40))
    assert listed(hf)["T1"]["maxNumber"] == 40


@case(31, "the cloud's API is unreachable → answered from the file")
def unreachable(hf: Grid) -> None:
    hf.cycles()
    before = listed(hf)
    hf.fault("unavailable")
    hf.cycles()
    assert listed(hf) == before


@case(32, "optional fields that are null → allowed and passed on", loop=False)
def nulls(hf: Grid) -> None:
    hf.write_templates(template("T1", pgrpName=None, podSpecYaml=None, attributes=_with_null()))
    shown = listed(hf)["T1"]
    assert shown["pgrpName"] is None
    assert "rank" not in shown["attributes"]  # type: ignore[operator]


def _with_null() -> dict[str, object]:
    return TEMPLATES["templates"][0]["attributes"] | {"rank": None}
