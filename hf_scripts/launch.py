"""The entry of all scripts: choose the program by its name."""

from __future__ import annotations

import gc
import os
import sys

from hf_scripts.commands import run


def main() -> None:
    """Run the program whose name is the first argument, with the other arguments. The shell scripts call this function
    with ``python -c '…' NAME ARGUMENT…``."""
    name, arguments = sys.argv[1], sys.argv[2:]
    # Other programs are imported here because their imports would slow HostFactory's calls down.
    if name == "check_install":
        from hf_scripts import installation_check

        sys.exit(installation_check.main(arguments, os.environ))
    gc.disable()  # search no reference cycles: among ten thousand hosts the search would take milliseconds
    if name.startswith("slurm_"):
        from hf_scripts.slurm_programs import PROGRAMS, make_document

        while os.open(os.devnull, os.O_RDWR) <= 2:  # slurmctld closes the streams; no other file may get their numbers
            pass
        code = run(name, make_document(arguments), os.environ, PROGRAMS)
    else:
        code = run(name, arguments, os.environ)
    os._exit(code)  # All output is written. Python's regular exit would double the time of the call, so skip it.
