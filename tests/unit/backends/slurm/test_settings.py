"""The settings of the kind ``slurm``. The pool that docs/slurm.md shows is valid, and only some versions of the API are
accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from provisioner.backends.slurm.settings import SlurmPool

PAGE = (Path(__file__).parents[4] / "docs" / "slurm.md").read_text()
((NAME, SHOWN),) = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])["pools"].items()


def test_the_pool_on_the_page_is_valid() -> None:
    pool = SlurmPool.model_validate({"name": NAME, **SHOWN})
    assert (pool.partition, pool.exclusive, pool.api_version) == ("night", True, "auto")


@pytest.mark.parametrize(
    ("version", "is_valid"), [("v0.0.36", False), ("v0.0.37", True), ("v0.0.45", True), ("40", False)]
)
def test_a_version_whose_lists_lack_owners_is_refused(version: str, is_valid: bool) -> None:
    try:
        SlurmPool.model_validate({"name": NAME, **SHOWN, "api_version": version})
    except ValueError:
        assert not is_valid
    else:
        assert is_valid
