"""Compute Engine's filters: the resources that they let through, and the refusal of every malformed filter."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.lab.cloud.compute.filter import compile_filter
from provisioner.lab.cloud.compute.operations import BASE

VM: dict[str, Any] = {
    "name": "hf-a-000001",
    "id": "1152921504606846977",
    "status": "RUNNING",
    "zone": f"{BASE}projects/p/zones/us-central1-a",
    "creationTimestamp": "2026-01-02T03:04:05.000-07:00",
    "labels": {"team": "risk", "empty": "", "number": "04"},
    "scheduling": {"preemptible": False, "minNodeCpus": 4},
    "networkInterfaces": [{"networkIP": "10.0.0.7", "name": "nic0"}],
    "tags": {"items": ["web", "db"]},
    "description": 'he said "a\\b"',
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name eq hf-.*", True),
        ('name eq "hf-(a|b)-.*"', True),
        ("(name eq hf-.*)(status eq STOPPED)", False),
        ("name = HF-A-000001", True),
        ("name=hf-*", True),
        ("name:a-0000", True),
        ("name!=hf-a-000001", False),
        ("labels.team=risk", True),
        ("labels.team:*", True),
        ("labels.absent:*", False),
        ("-labels.absent:*", True),
        ("(status = RUNNING) (labels.team = risk)", True),
        ("status=STOPPED OR labels.team=risk", True),
        ("status=STOPPED OR labels.team=risk AND name=x", False),
        ("NOT status=RUNNING", False),
        ("NOT (status=STOPPED OR name=x)", True),
        ("networkInterfaces.networkIP=10.0.0.7", True),
        ("scheduling.preemptible=false", True),
        ("id>41", True),
        ('creationTimestamp>"2026-01-01"', True),
    ],
)
def test_a_filter_lets_through(text: str, expected: bool) -> None:
    assert compile_filter(text, "Instance")(VM) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'zone eq ".*\bus\-central1\b.*"', True),
        (r'zone eq ".*\bcentral1\-b\b.*"', False),
        (r"zone eq '.*\bus\-central1\b.*'", True),
        (r"zone ne .*\bus-central1\b.*", False),
        (r'networkInterfaces.networkIP eq "10\.0\.0\.\d+"', True),
        (r'networkInterfaces.networkIP eq "10\.0\.0x7"', False),
        (r'description eq "he said \"a\\b\""', True),
        (r'description eq ".*\"a\\\\b.*"', False),
        (r'((name eq ".*(hf\-a).*")(status eq RUNNING))(zone eq ".*(us).*")', True),
        (r'(name eq ".*(hf\-a).*")((status eq RUNNING)(zone eq ".*(eu).*"))', False),
        ("name eq ^hf(-.+)*-0.+", True),
        (r"name eq hf\(a", False),
        ("(zone eq .*us-central1-a|.*us-central1-b)", True),
        ("zone eq .*/zones/us-central1-a", True),
        ("scheduling.preemptible eq false", True),
        ("tags.items eq web", True),
        ("name eq [[:alpha:]]{2}-[[:alnum:]-]+", True),
        ("name eq [^[:digit:]]+", False),
        (r"name eq \Qhf-a\E-\d+\z", True),
        (r"name eq \Qhf-.\E.*", False),
        ("name eq [a-z&&-]+[0-9]+", True),
        (r"name eq hf-[\w]-[0-9]+", True),
        ("name eq (?i)HF-.*", True),
    ],
)
def test_a_regular_expression_is_read_as_re2_reads_it(text: str, expected: bool) -> None:
    assert compile_filter(text, "Instance")(VM) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('creationTimestamp>"2026-01-02T10:04:04Z"', True),
        ('creationTimestamp>"2026-01-02T10:04:06Z"', False),
        ('creationTimestamp="2026-01-02T11:04:05+01:00"', True),
        ("id=1152921504606846977", True),
        ("scheduling.minNodeCpus=4.0", True),
        ("scheduling.minNodeCpus!=4", False),
        ("scheduling.minNodeCpus>10", False),
        ("scheduling.preemptible!=FALSE", False),
        ("labels.number=4", False),
        ("labels.number=04", True),
        ("labels:team", True),
        ("labels:*", True),
        ("hostname:*", False),
        ("tags.items:we", True),
        (r'description="he said \"a\\b\""', True),
        ('labels.empty=""', True),
    ],
)
def test_values_are_compared_as_what_they_are(text: str, expected: bool) -> None:
    assert compile_filter(text, "Instance")(VM) is expected


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "name eq",
        "(name=x",
        "name=x)",
        "= x",
        "name eq a AND status=RUNNING",
        "(name eq a) (status=RUNNING)",
        "(name eq a) OR (name eq b)",
        "name eq a status eq b",
        'name="x',
        'name eq "x',
        'name eq "x"y',
        'name eq ""y',
        "()",
        "name=x AND AND status=RUNNING",
        "name==x",
        "name=~x",
        "name=x,y",
        "name=x||name=y",
        r'name="a\d"',
        "nam=x",
        "metadata.owner=x",
        "labels.team.more=x",
        "disks[0].source=x",
        "scheduling=x",
        "labels eq x",
        "scheduling.minNodeCpus=many",
        "scheduling.minNodeCpus>inf",
        "scheduling.preemptible=no",
        "scheduling.preemptible>false",
        "creationTimestamp>yesterday",
        "name eq (?=hf).*",
        r"name eq (a)\1",
        "name eq (?>a)",
        "name eq a*+",
        r"name eq a\Z",
        r"name eq \pL",
        "name eq [[:nothing:]]",
        pytest.param("(" * 3000 + "name=x" + ")" * 3000, id="thousands of parentheses"),
        pytest.param("name eq " + "(" * 3000 + ")" * 3000, id="thousands of groups"),
        pytest.param("NOT " * 3000 + "name=x", id="thousands of negations"),
    ],
)
def test_a_filter_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid list filter expression"):
        compile_filter(text, "Instance")


@pytest.mark.parametrize(
    "text",
    [
        'zone="http://here:1/compute/v1/projects/p/zones/us-central1-a"',
        'zone:"//here:1/"',
        "zone eq http://here:1/compute/v1/projects/p/zones/us-central1-a",
        r'zone eq ".*\bhttp://here:1/compute/v1/projects/p/zones/us\-central1\-a\b.*"',
    ],
)
def test_a_url_is_compared_as_the_caller_was_shown_it(text: str) -> None:
    assert compile_filter(text, "Instance", "http://here:1/compute/v1/")(VM)
    assert not compile_filter(text, "Instance", "http://there:1/compute/v1/")(VM)
