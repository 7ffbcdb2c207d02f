"""The progress of many runs on stderr. If stderr is a terminal, the progress is a bar. If not, a line is written from
time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from provisioner.lab.virtual.run import Result

LINE_SECONDS = 15.0
"""Minimum seconds between two lines, so that the log of a night of runs stays short."""


@contextmanager
def progress(runs: int, console: Console) -> Iterator[Callable[[Result], None]]:
    """Show the progress of ``runs`` runs. Yield a function to call with each result."""
    if console.is_terminal:
        with _bar(runs, console) as show:
            yield show
    else:
        yield _lines(runs, console)


@contextmanager
def _bar(runs: int, console: Console) -> Iterator[Callable[[Result], None]]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("", total=runs)
        yield lambda result: bar.update(task, advance=1, description=_name(result))


def _lines(runs: int, console: Console) -> Callable[[Result], None]:
    began = printed_at = time.monotonic()
    ended = 0

    def show(result: Result) -> None:
        nonlocal printed_at, ended
        ended += 1
        now = time.monotonic()
        if now - printed_at >= LINE_SECONDS:
            printed_at = now
            text = f"{ended} of {runs} runs in {now - began:.0f} s; the last: {_name(result)}"
            console.print(text, highlight=False, soft_wrap=True)

    return show


def _name(result: Result) -> str:
    return f"{result.scenario}, {result.controller}, seed {result.seed}"
