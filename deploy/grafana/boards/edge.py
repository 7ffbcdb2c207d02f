"""The board of the interface to HostFactory: requests, answers, and the files that scripts and loop share."""

from __future__ import annotations

from .queries import AGE, increase, quantile, selector
from .questions import Board, Line, Question, line_question


def requests() -> list[Question]:
    """Return the panels about HostFactory's requests: open requests, failed requests, and refused calls."""
    unmet = selector("oldest_unmet_timestamp_seconds", "instance")
    return [
        line_question(
            "Open requests",
            "Requests and return requests without a terminal answer.",
            f"sum by (kind) ({selector('requests', status='running')})",
            "{{kind}}",
            width=8,
        ),
        line_question(
            "Ended with an error",
            "Ended requests and returns that are still in the state files.",
            f"sum by (kind) ({selector('requests', status='complete_with_error')})",
            "{{kind}}",
            width=8,
        ),
        line_question(
            "Longest wait",
            "Age of the oldest open request; no line for a template without an open request.",
            f"time() - min by (template) ({unmet})",
            "{{template}}",
            "s",
            8,
        ),
        line_question(
            "Since HostFactory's last call",
            "Time since HostFactory last polled a request and last listed its hosts. HostFactory does both every 30 s.",
            AGE.format(by="script", metric=selector("hostfactory_last_call_timestamp_seconds")),
            "{{script}}",
            "s",
            12,
        ),
        line_question(
            "Refused calls in five minutes",
            "Correct calls of HostFactory that a script could not answer; provisioner status shows the reason.",
            increase(selector("script_calls_refused_total"), "script"),
            "{{script}}",
            width=12,
        ),
    ]


def leftovers() -> list[Question]:
    """Return the panels of machines that need an operator."""
    return [
        line_question(
            "Not in HostFactory's lists",
            "Machines that run and that HostFactory has not listed for 24 hours.",
            f"sum by (pool) ({selector('machines_unlisted')})",
            "{{pool}}",
            width=8,
        ),
        line_question(
            "Down",
            "Machines that were reported to HostFactory and do not run now; provisioner status shows the reason.",
            f"sum by (pool) ({selector('machines_down')})",
            "{{pool}}",
            width=8,
        ),
        line_question(
            "Stuck",
            "Machines that still exist long after the end of their grace period; provisioner status names them.",
            f"sum by (pool) ({selector('machines_stuck')})",
            "{{pool}}",
            width=8,
        ),
    ]


def demand() -> list[Question]:
    """Return the panels of ``provisioner demand``. Prometheus scrapes the processes of this command separately from the
    loops."""
    names = ("wanted", "asked", "running", "idle")
    lines = [Line(f"sum by (template) (hf_demand_{name})", f"{{{{template}}}} {name}") for name in names]
    step = AGE.format(by="job", metric="hf_demand_last_step_timestamp_seconds")
    interval = 'label_replace(max by (job) (hf_demand_interval_seconds), "source", "interval of ", "", "")'
    return [
        Question("Demand", "Machines that the sources want, that were requested, that run, and that are idle.", lines),
        line_question(
            "Age of readings, and of the last step",
            "Readings are made every interval_seconds; a source that fails keeps its last numbers.",
            f"max by (source) (hf_demand_source_age_seconds) or {step} or {interval}",
            "{{source}}{{job}}",
            "s",
        ),
        line_question(
            "Share of failed readings, in an hour",
            "provisioner status shows the reason.",
            "max by (source) (increase(hf_demand_source_failures_total[1h])"
            " / on (job, instance) group_left increase(hf_demand_steps_total[1h]))",
            "{{source}}",
            "percentunit",
        ),
        line_question(
            "Jobs that fit no template",
            "provisioner status describes the jobs.",
            "sum by (source) (hf_demand_unfit_jobs)",
            "{{source}}",
        ),
    ]


def files() -> list[Question]:
    """Return the panels of the files that scripts and loop share."""
    return [
        line_question(
            "Wait for the lock of intent.json, p95",
            "Scripts fail after 20 s of waiting.",
            quantile(0.95, selector("store_lock_wait_seconds")),
            "",
            "s",
            12,
        ),
        line_question(
            "State files", "Size of each file.", f"max by (file) ({selector('store_bytes')})", "{{file}}", "bytes", 12
        ),
    ]


BOARD = Board(
    "edge",
    "HostFactory's edge",
    "HostFactory's requests and the answers to them, and the files between its scripts and the loop.",
    ["instance"],
    [
        ("Requests", requests()),
        ("Machines that need an operator", leftovers()),
        ("Files", files()),
        ("Demand without HostFactory", demand()),
    ],
)
