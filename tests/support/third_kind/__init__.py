"""A kind of place that another distribution brings: what it holds is installed, nothing of the provisioner changes."""

from __future__ import annotations

import shutil
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: yard-provisioner\nVersion: 1.0\n"
ENTRY_POINTS = "[provisioner.backends]\nyard = yard:KIND\n"


def install(directory: Path) -> Path:
    """Put the distribution into a directory, as pip does, and return that: on ``sys.path`` it is found."""
    info = directory / "yard_provisioner-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(Path(__file__).with_name("yard.py"), directory)
    return directory
