"""``python -m provisioner``, and the console script: Ctrl-C is heeded before anything is imported that takes time."""

from __future__ import annotations

import sys

from provisioner import interrupts
from provisioner.extras import MissingExtra, extra, needing


def main() -> None:
    """Entry point; ends the process with an exit code of ``cli``, or 130 after Ctrl-C."""
    interrupts.heed()
    try:
        with needing(extra("loop")):
            from provisioner.commands import cli
        cli.main()
    except MissingExtra as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        interrupts.end()
    finally:
        interrupts.heed_no_more()
        interrupts.end_processes()


if __name__ == "__main__":
    main()
