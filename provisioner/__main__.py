"""``python -m provisioner``, and the console script: Ctrl-C is heeded before anything is imported that takes time."""

from __future__ import annotations

from provisioner import interrupts


def main() -> None:
    """Entry point; ends the process with an exit code of ``cli``, or 130 after Ctrl-C."""
    interrupts.heed()
    try:
        from provisioner.commands import cli

        cli.main()
    except KeyboardInterrupt:
        interrupts.end()
    finally:
        interrupts.end_processes()


if __name__ == "__main__":
    main()
