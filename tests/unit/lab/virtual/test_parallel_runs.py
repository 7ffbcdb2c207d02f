"""The player of runs: it keeps samples only of runs that are drawn, and only a limited number of them."""

from __future__ import annotations

from provisioner.lab.virtual import parallel_runs
from provisioner.lab.virtual.scenario_file import catalogue


def test_samples_are_kept_for_pictures_alone_and_not_too_many() -> None:
    few = catalogue()["few"]
    assert parallel_runs.played(parallel_runs.Run(few, 1, "provisioner")).samples == ()
    samples = parallel_runs.played(
        parallel_runs.Run(few.model_copy(update={"hours": 3.0}), 1, "exact", is_drawn=True)
    ).samples
    assert 200 < len(samples) <= parallel_runs.MOST_SAMPLES
    assert samples[-1].at > 3 * 3600 - 60
