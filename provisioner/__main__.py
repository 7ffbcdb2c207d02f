"""``python -m provisioner``."""

from provisioner.cli import main

if __name__ == "__main__":
    main()
