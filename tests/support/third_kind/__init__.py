"""A kind of place in another distribution. The distribution is installed, and the provisioner is not changed."""

from __future__ import annotations

import shutil
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: yard-provisioner\nVersion: 1.0\n"
ENTRY_POINTS = "[provisioner.backends]\nyard = yard:KIND\n"


def install(directory: Path) -> Path:
    """Install the distribution into a directory, as pip does, and return the directory. The distribution is found if
    the directory is on ``sys.path``."""
    info = directory / "yard_provisioner-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(Path(__file__).with_name("yard.py"), directory)
    return directory
