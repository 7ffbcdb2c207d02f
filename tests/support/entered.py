"""Count the modules and functions that one request enters: in the scripts, and in the loop's cycles on a fake place.

The count contains functions, lambdas and comprehensions of ``provisioner`` and ``hf_scripts``. It leaves out the
laboratory and code outside of functions. A function that is entered twice counts once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Set
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from tests.support.cycle_bench import Bench
from tests.support.hostfactory.in_process import call_here
from tests.support.hostfactory.provider import ROOT, HostFactory

COUNTED = (f"{ROOT}/provisioner/", f"{ROOT}/hf_scripts/")
APART = f"{ROOT}/provisioner/lab/"

CYCLES_OF_A_LOSS = 30
"""Cycles within which a machine that vanished is reported as lost and its slot is closed."""


class Entered(NamedTuple):
    """The number of modules and functions that were entered."""

    modules: int
    functions: int


def entered(act: Callable[[], object]) -> Set[CodeType]:
    """Return the functions that ``act`` enters."""
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(COUNTED) and not code.co_filename.startswith(APART):
            found.add(code)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return {code for code in found if code.co_name != "<module>"}


def count(functions: Set[CodeType]) -> Entered:
    """Return the number of these functions, and the number of their modules."""
    return Entered(len({code.co_filename for code in functions}), len(functions))


def ways(directory: Path) -> dict[str, Set[CodeType]]:
    """Run a bench through the steps of a request. Return the functions that each step enters, by the name of the step.

    The files of the state are below ``directory``.
    """
    (directory / "loop").mkdir()
    bench = Bench(directory / "loop")
    bench.request(1)
    bench.cycle(3)
    bench.request(3)
    found = {"first cycle of a request": entered(bench.cycle)}
    bench.place.place.boot()
    observations = bench.at_rest()
    found["idle cycle"] = entered(lambda: bench.reconciler.cycle(bench.anew(observations)))
    lost, *_ = bench.place.machines
    bench.place.lose(lost)
    found["lost machine"] = entered(lambda: bench.cycle(CYCLES_OF_A_LOSS))
    assert lost in bench.state.status.read_lost()
    return found | _script_ways(HostFactory(directory / "scripts"))


def _script_ways(hf: HostFactory) -> dict[str, Set[CodeType]]:
    def call(name: str, document: object) -> tuple[Set[CodeType], str]:
        answers: list[str] = []
        functions = entered(lambda: answers.append(call_here(name, [json.dumps(document)], hf.environment).out))
        return functions, answers[0]

    wanted = {"template": {"templateId": "T1", "machineCount": 2}}
    _, first = call("requestMachines", wanted)
    asking, _ = call("requestMachines", wanted)
    polling, _ = call("getRequestStatus", {"requests": [{"requestId": json.loads(first)["requestId"]}]})
    return {"requestMachines": asking, "getRequestStatus": polling}
