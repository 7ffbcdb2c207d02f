"""The output of list commands is read in each format. If any part of an output differs from the declared format, the
whole output is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from provisioner.backends.command.records import Record, epoch, host_name, read_records
from provisioner.backends.command.settings import CommandPool

STATES = {"pending": ["PEND"], "running": ["RUN"], "gone": ["DONE"]}
FIELDS = {"name": "JOB_NAME", "id": "JOBID", "state": "STAT", "host": "HOST"}
ONE = {"JOB_NAME": "hf-a-1", "JOBID": 7, "STAT": "RUN", "HOST": None}
EXPECTED = [Record("hf-a-1", "7", "RUN", "running")]


def pool(format_: str, **listed: object) -> CommandPool:
    list_settings: Mapping[str, Any] = {"argv": ["bjobs"], "format": format_, "fields": FIELDS, **listed}
    settings = {"create": {"argv": ["bsub", "{name}"], "id": "(?P<id>.)"}, "delete": {"argv": ["bkill", "{id}"]}}
    return CommandPool.model_validate({"name": "p", "list": list_settings, "states": STATES, **settings})


JSON = pool("json", items="RECORDS")
DEEP = pool("json", items="/data/jobs")
BARE = pool("json")
CSV = pool("csv", separator=",")
SEPARATED = pool("separated", fields={"id": "1", "name": "3", "state": "2", "host": "4"}, skip=1)
XML = pool("xml", items=".//job", fields={"name": "JB_name", "id": "@number", "state": "state", "host": "queue/host"})
LINES = pool("lines", fields={}, skip=1, match=r"^(?P<id>\d+)\s+(?P<state>\w+)\s.*\[(?P<name>[^]]+)\]")


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        (JSON, json.dumps({"JOBS": 1, "RECORDS": [ONE]})),
        (DEEP, json.dumps({"data": {"jobs": [ONE]}})),
        (BARE, json.dumps([ONE])),
        (CSV, "JOBID,JOB_NAME,STAT,HOST\n7,hf-a-1,RUN,\n"),
        (SEPARATED, "id|state|name|host\n7|RUN| hf-a-1 |\n"),
        (XML, '<all><jobs><job number="7"><JB_name>hf-a-1</JB_name><state>RUN</state></job></jobs></all>'),
        (LINES, "ID   State   Command\n7    RUN    stdout    [hf-a-1]sleep 20\n"),
    ],
)
def test_each_format_is_read(settings: CommandPool, output: str) -> None:
    assert read_records(settings, output) == EXPECTED


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        (JSON, '{"JOBS": 0, "RECORDS": []}'),
        (CSV, "JOBID,JOB_NAME,STAT,HOST\n"),
        (SEPARATED, "id|state|name|host\n"),
        (XML, "<all><jobs></jobs></all>"),
        (LINES, "ID   State   Command\n"),
    ],
)
def test_a_list_without_jobs_is_empty(settings: CommandPool, output: str) -> None:
    assert read_records(settings, output) == []


@pytest.mark.parametrize(
    ("settings", "output", "said"),
    [
        (JSON, '{"RECORDS": [', "Expecting value"),
        (JSON, '{"JOBS": 0}', "the output has no RECORDS"),
        (JSON, '{"RECORDS": {"7": {}}}', "RECORDS is not a list of records"),
        (JSON, json.dumps({"RECORDS": [ONE | {"JOBID": ""}]}), "a record has no id"),
        (JSON, json.dumps({"RECORDS": [ONE | {"JOBID": [7]}]}), "a text was expected"),
        (JSON, json.dumps({"RECORDS": [ONE | {"STAT": "NEW"}]}), "the state 'NEW' of hf-a-1 is not in states"),
        (JSON, json.dumps({"RECORDS": [ONE | {"JOB_NAME": "*fghij-000001"}]}), "was cut: remove the width"),
        (CSV, "7,hf-a-1,RUN,\n", "the header line has no column"),
        (CSV, "", "the header line has no column"),
        (CSV, "JOBID,JOB_NAME,STAT,HOST\n7,hf-a-1\n", "another number of columns"),
        (CSV, 'JOBID,JOB_NAME,STAT,HOST\n7,"hf-a-1', "unexpected end of data"),
        (SEPARATED, "id|state|name|host\n7|RUN\n", "a line has 2 columns"),
        (XML, "<all><jobs><job", "unclosed token"),
        (LINES, "ID   State   Command\n7    RUN    stdo", "is not matched by list.match"),
    ],
)
def test_what_is_not_as_declared_is_no_list(settings: CommandPool, output: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_records(settings, output)


def test_a_moment_is_read_in_its_format() -> None:
    assert epoch("1700000000.5", "epoch") == 1_700_000_000
    assert epoch("2023-11-14T22:13:20+0000", "%Y-%m-%dT%H:%M:%S%z") == 1_700_000_000
    assert epoch("2023", None) == epoch("", "epoch") == 0
    with pytest.raises(ValueError, match="does not match"):
        epoch("yesterday", "%Y")


@pytest.mark.parametrize("listed", ["host.example", "grid@host.example", "4*host.example", "4*host.example:2*other"])
def test_a_host_is_read_however_the_place_writes_it(listed: str) -> None:
    assert host_name(listed) == "host.example"
