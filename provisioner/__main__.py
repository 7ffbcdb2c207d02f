"""Start of ``python -m provisioner`` and of the console script. Ctrl-C is handled before any slow import."""

from __future__ import annotations

import sys

from provisioner import process_end
from provisioner.optional_packages import MissingExtra, extra, require_packages


def main() -> None:
    """Run the command line and end the process.

    Exit codes: the code of ``cli``; 130 after Ctrl-C; 2 if a package is missing; 141 if the reader of the output has
    closed the pipe; 1 if the output cannot be written.
    """
    process_end.follow()
    code: object = process_end.INTERRUPTED
    try:
        with require_packages(extra("loop")):
            from provisioner.commands import cli
        cli.main()
    except MissingExtra as error:
        print(error, file=sys.stderr)
        code = 2
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        pass
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code or process_end.CLOSED_PIPE
    except OSError:  # the disk is full
        code = code or 1
    # Python's own exit would wait for threads that wait for clouds, and would interrupt threads at work.
    process_end.end(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
