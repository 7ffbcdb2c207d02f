"""The slurm backend with each version of slurmrestd's API. A stand-in plays the versions. If SchedMD has published
models of a version, the bodies are checked against them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.backends import BackendError
from provisioner.backends.slurm.backend import SlurmBackend
from provisioner.backends.slurm.cluster import Cluster
from provisioner.backends.slurm.settings import SlurmPool
from provisioner.model import Create, Delete, DeleteReason, ErrorClass, LossCause, Outcome, Phase
from provisioner.names import machine_name
from provisioner.testing.place import PREFIX, REQUEST, always
from tests.support.schedulers.slurmrestd_stand_in import EMPTY, NOTHING_NEW, SlurmrestdStandIn

VERSIONS = range(39, 46)
ONE, TWO, THREE = (machine_name(PREFIX, REQUEST, number) for number in (1, 2, 3))


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v0.0.{version}")
def place(request: pytest.FixtureRequest) -> Iterator[SlurmrestdStandIn]:
    """Yield a slurmrestd of each version."""
    with SlurmrestdStandIn(request.param) as made:
        yield made


def backend(place: SlurmrestdStandIn, directory: Path, **settings: object) -> SlurmBackend:
    (directory / "token").write_text("a.b.c")
    (directory / "pilot.sh").write_text("exec pilot\n")
    body = {"endpoint": place.url, "user": "grid", "partition": "grid", "name": "hpc", "observe_seconds": 0.0}
    files = {"token_file": directory / "token", "script_file": directory / "pilot.sh"}
    pool = SlurmPool.model_validate(body | files | settings)
    return SlurmBackend(pool, Cluster(pool), provisioner="demo", prefix=PREFIX)


def create(pool: SlurmBackend, *names: str) -> list[Outcome]:
    """Create machines one after the other, so that their jobs get the numbers 1, 2 and so on."""
    return [one for name in names for one in pool.create([Create(name, "hpc", "small", REQUEST)], always)]


def delete(pool: SlurmBackend, *names: str) -> list[ErrorClass | None]:
    outcomes = pool.delete([Delete(name, "hpc", DeleteReason.RETURNED) for name in names], always)
    return [outcome.failure.error if outcome.failure else None for outcome in outcomes]


def test_a_machine_from_its_create_to_its_delete(place: SlurmrestdStandIn, tmp_path: Path) -> None:
    pool = backend(place, tmp_path, cpus=4, memory_mb=1000, time_limit_minutes=60)
    assert pool.observe(1.0, {}).machines == {}
    assert [outcome.failure for outcome in create(pool, ONE, TWO)] == [None, None]
    machine = pool.observe(2.0, {}).machines[ONE]
    assert (machine.phase, machine.ip, machine.failure) == (Phase.RUNNING, "127.0.0.1", None)
    assert machine.expires_at == machine.launched + 3600
    assert delete(pool, ONE) == [None]
    snapshot = pool.observe(3.0, {})
    assert snapshot.machines.keys() == {TWO}
    assert snapshot.ends[ONE].cause is LossCause.DELETED


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (("RUNNING", "CONFIGURING"), Phase.PENDING),
        (("RUNNING", "COMPLETING"), Phase.STOPPING),
        (("CANCELLED", "COMPLETING"), Phase.STOPPING),
        (("SUSPENDED",), Phase.RUNNING),
        (("PENDING", "REQUEUED"), Phase.GONE),
    ],
)
def test_states_of_several_words(tmp_path: Path, state: tuple[str, ...], phase: Phase) -> None:
    with SlurmrestdStandIn(44) as place:
        pool = backend(place, tmp_path)
        create(pool, ONE)
        place.change(ONE, *state)
        assert pool.observe(1.0, {}).machines[ONE].phase is phase


def test_deletes_are_one_call_where_the_version_has_it(place: SlurmrestdStandIn, tmp_path: Path) -> None:
    pool = backend(place, tmp_path)
    create(pool, ONE, TWO, THREE)
    assert delete(pool, ONE, TWO, THREE) == [None] * 3
    calls = [(path.rpartition("job")[2], body) for method, path, body in place.calls if method == "DELETE"]
    expected = [("s/", {"jobs": ["1", "2", "3"]})] if place.versions[0] >= 40 else [(f"/{n}", {}) for n in (1, 2, 3)]
    assert sorted(calls, key=str) == expected


def test_each_delete_of_a_call_has_its_own_end(tmp_path: Path) -> None:
    with SlurmrestdStandIn(44) as place:
        pool = backend(place, tmp_path)
        create(pool, ONE, TWO, THREE)
        place.unkillable = {2: (2, "Access/permission denied"), 3: (2021, "Job/step already completing or completed")}
        assert delete(pool, ONE, TWO, THREE) == [None, ErrorClass.DENIED, None]


def test_a_job_that_is_forgotten_meanwhile_is_deleted(place: SlurmrestdStandIn, tmp_path: Path) -> None:
    pool = backend(place, tmp_path)
    create(pool, ONE)
    job = place.jobs.pop(1)
    place.jobs[7] = job | {"job_id": 1}  # the list shows number 1, which no call knows any more
    assert delete(pool, ONE) == [None]


def test_no_delete_is_sent_without_the_number_of_a_job(place: SlurmrestdStandIn, tmp_path: Path) -> None:
    pool = backend(place, tmp_path)
    assert delete(pool, ONE, TWO) == [None, None]
    assert not [call for call in place.calls if call[0] == "DELETE"]
    with pytest.raises(ValueError, match="no jobs"):
        Cluster(pool._settings).api.cancel_many([])


def test_a_list_that_is_empty_because_nothing_is_new_is_a_failed_observation(
    place: SlurmrestdStandIn, tmp_path: Path
) -> None:
    pool = backend(place, tmp_path)
    create(pool, ONE)
    place.list_warning = NOTHING_NEW
    with pytest.raises(BackendError, match="incomplete"):
        pool.observe(1.0, {})
    place.list_warning = EMPTY
    assert pool.observe(2.0, {}).machines == {}
    assert not any("update_time" in path for _, path, _ in place.calls)


@pytest.mark.parametrize("status", [200, 422, 500])
def test_an_answer_with_errors_is_a_failed_observation(tmp_path: Path, status: int) -> None:
    """An observation must fail if slurmctld refuses the call. slurmrestd then responds with 422 since version 26.05,
    and with 500 in older versions."""
    with SlurmrestdStandIn(45) as place:
        pool = backend(place, tmp_path)
        create(pool, ONE)
        place.refusal = (status, 1800, "Unable to contact slurm controller (connect failure)")
        with pytest.raises(BackendError) as raised:
            pool.observe(1.0, {})
        assert raised.value.failure.error is ErrorClass.UNAVAILABLE
        place.refusal = (status, 1007, "Protocol authentication error")
        with pytest.raises(BackendError) as raised:
            pool.observe(2.0, {})
        assert raised.value.failure.error is ErrorClass.DENIED


@pytest.mark.parametrize(("versions", "chosen"), [((39, 40, 41), 41), ((41, 42, 43, 44), 44), ((43, 44, 45, 46), 45)])
def test_the_newest_version_that_both_know_is_used(tmp_path: Path, versions: tuple[int, ...], chosen: int) -> None:
    with SlurmrestdStandIn(*versions) as place:
        pool = backend(place, tmp_path)
        pool.observe(1.0, {})
        assert place.calls[-1][1] == f"/slurm/v0.0.{chosen}/jobs"
        pool.observe(2.0, {})
        assert sum(path.endswith("/ping") for _, path, _ in place.calls) == 46 - chosen, "it asks once"


def test_after_an_upgrade_or_a_downgrade_the_version_is_chosen_again(tmp_path: Path) -> None:
    with SlurmrestdStandIn(43, 44, 45) as place:
        pool = backend(place, tmp_path)
        create(pool, ONE)
        place.versions = (41, 42, 43)
        with pytest.raises(BackendError):
            pool.observe(1.0, {})
        assert pool.observe(2.0, {}).machines.keys() == {ONE}
        assert place.calls[-1][1].startswith("/slurm/v0.0.43/")


def test_a_version_that_is_set_is_not_asked_for(tmp_path: Path) -> None:
    with SlurmrestdStandIn(41, 42) as place:
        backend(place, tmp_path, api_version="v0.0.41").observe(1.0, {})
        assert [path for _, path, _ in place.calls] == ["/slurm/v0.0.41/jobs"]


def test_a_slurmrestd_of_other_versions_is_reported(tmp_path: Path) -> None:
    with SlurmrestdStandIn(47) as place, pytest.raises(BackendError, match="knows no version of its API"):
        backend(place, tmp_path).observe(1.0, {})
