"""``python -m provisioner``, and the console script: Ctrl-C is followed before anything is imported that takes time."""

from __future__ import annotations

import sys

from provisioner import interrupts
from provisioner.optional_packages import MissingExtra, extra, needing


def main() -> None:
    """Entry point; ends the process with an exit code of ``cli``, or 130 after Ctrl-C."""
    interrupts.follow()
    code: object = interrupts.INTERRUPTED
    try:
        with needing(extra("loop")):
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
    except OSError:  # a full disk, or a reader that has gone
        code = code or 1
    # Python's own end would wait for threads that wait for clouds, and break off others in the midst of their work.
    interrupts.end(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
