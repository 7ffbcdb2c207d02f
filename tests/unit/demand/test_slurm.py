"""Pending jobs and nodes as Slurm's commands print them, and the machines that they want.

The columns are from squeue(1), ``--Format``. The lines of nodes are those of ``scontrol show nodes --oneliner`` in
Slurm 22.05 (Debian 12) and later.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from provisioner.demand import slurm
from provisioner.demand.packing import Jobs, Member
from provisioner.demand.slurm import FIELDS, Slurm, read_jobs, read_members, read_resources
from provisioner.demand.sources import Fleet, Running, Shape, SourceError

SHAPES = {
    "Small": Shape(4, 16_000, 0),
    "Large": Shape(16, 64_000, 0),
    "Gpu": Shape(16, 64_000, 2),
}
NOW = 1_800_000_000.0
FLEET = Fleet(NOW, SHAPES, {name: Running("Small", NOW - 100) for name in ("hf-1-1", "hf-1-2")})


def line(
    tres: str = "cpu=1,mem=1000M,node=1,billing=1",
    *,
    partition: str = "grid",
    reason: str = "Resources",
    nodes: int = 1,
    tasks: int = 1,
    shared: str = "OK",
    per_node: str = "N/A",
    per_task: str = "N/A",
    per_job: str = "N/A",
) -> str:
    """Return a line of squeue."""
    values = {"Partition": partition, "Reason": reason, "NumNodes": str(nodes), "NumTasks": str(tasks)}
    values |= {"OverSubscribe": shared, "tres-alloc": tres, "tres-per-node": per_node}
    values |= {"tres-per-task": per_task, "tres-per-job": per_job}
    return "".join(values[name][:width].ljust(width) for name, width in FIELDS.items()) + "\n"


def jobs(*lines: str, **settings: object) -> list[Jobs]:
    return read_jobs("".join(lines), Slurm.model_validate(settings), FLEET, has_memory=True)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("cpu=4,mem=16G,node=1,billing=4", (4, 16_384, 0)),
        ("cpu=1,mem=1000M,node=1,billing=1,gres/gpu=2,gres/gpu:a100=2", (1, 1000, 2)),
        ("cpu=1,mem=1.50T", (1, 1_572_864, 0)),
        ("cpu=1,mem=512K", (1, 1, 0)),
        ("cpu=1,mem=100", (1, 100, 0)),
        ("cpu=1,node=1,billing=1", (1, 0, 0)),
        ("", (0, 0, 0)),
        ("N/A", (0, 0, 0)),
        ("(null)", (0, 0, 0)),
    ],
)
def test_resources_are_processors_megabytes_and_gpus(written: str, expected: tuple[float, ...]) -> None:
    assert read_resources(written) == expected


@pytest.mark.parametrize("written", ["cpu", "cpu=many", "mem=4X", "mem="])
def test_other_resources_are_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_resources(written)


def test_equal_lines_are_one_group_of_jobs() -> None:
    assert jobs(line(), line(), line("cpu=2,mem=4G,node=1")) == [Jobs(2, 1, 1000), Jobs(1, 2, 4096)]


@pytest.mark.parametrize(
    "reason",
    [
        *("Dependency", "BeginTime", "JobHeldUser", "JobHeldAdmin", "JobArrayTaskLimit", "QOSMaxJobsPerUserLimit"),
        *(
            "AssocGrpCpuLimit",
            "PartitionDown",
            "Licenses",
            "Reservation",
            "ReqNodeNotAvail",
            "DependencyNeverSatisfied",
        ),
    ],
)
def test_a_job_that_no_machine_would_start_does_not_count(reason: str) -> None:
    assert jobs(line(reason=reason)) == []
    assert jobs(line(reason=reason), reasons=[reason]) == [Jobs(1, 1, 1000)]


def test_jobs_for_resources_and_for_priority_count() -> None:
    assert jobs(line(reason="Resources"), line(reason="Priority")) == [Jobs(1, 1, 1000), Jobs(1, 1, 1000)]


def test_a_partition_decides_on_the_templates() -> None:
    settings = {"partitions": {"grid": ["Small"], "big": ["Small", "Large"]}}
    assert jobs(line(), **settings)[0].templates == {"Small"}
    assert jobs(line(partition="big,grid"), **settings)[0].templates == {"Small", "Large"}
    assert jobs(line(partition="other"), **settings) == []
    assert jobs(line(partition="other,grid"), **settings)[0].templates == {"Small"}
    assert Slurm.model_validate(settings).templates() == {"Small", "Large"}


def test_a_job_on_several_nodes_is_a_part_for_each() -> None:
    assert jobs(line("cpu=8,mem=8G,node=4", nodes=4, tasks=8)) == [Jobs(4, 2, 2048)]


def test_a_job_that_fits_no_node_is_spread_by_tasks() -> None:
    """A job of 64 tasks that fits no node must count as 64 jobs of one task. Without --nodes, Slurm may run it on many
    nodes, because ``NumNodes`` of a pending job is only a minimum."""
    assert jobs(line("cpu=64,mem=64000M,node=1", tasks=64)) == [Jobs(64, 1, 1000)]
    assert jobs(line("cpu=64,mem=64000M,node=1", tasks=1)) == [Jobs(1, 64, 64_000)], "one task cannot be spread"


def test_a_job_that_has_its_node_for_itself_takes_a_whole_machine() -> None:
    assert jobs(line(shared="NO")) == [Jobs(1, 4, 1000)]
    assert jobs(line("cpu=5,mem=1000M,node=1", shared="NO")) == [Jobs(1, 16, 1000)]
    assert jobs(line("cpu=2,mem=2000M,node=2", nodes=2, shared="NO")) == [Jobs(2, 4, 1000)]
    for shared in ("OK", "YES", "USER"):
        assert jobs(line(shared=shared)) == [Jobs(1, 1, 1000)]


def test_memory_that_slurm_does_not_allocate_does_not_count() -> None:
    """If a cluster allocates only processors (CR_CPU), the memory of a job must not count. Slurm 22.05 then prints the
    node's whole memory for a job that requests none."""
    whole = line("cpu=1,mem=62.50G,node=1,billing=1")
    assert read_jobs(whole, Slurm(), FLEET, has_memory=False) == [Jobs(1, 1, 0)]
    assert jobs(whole) == [Jobs(1, 1, 64_000)]


def test_gpus_come_from_the_resources_or_from_the_request() -> None:
    """The resources have GPUs only if AccountingStorageTRES names them, which is not Slurm's default. sbatch has the
    options ``--gpus-per-node``, ``--gpus-per-task`` and ``--gpus``."""
    assert jobs(line("cpu=2,mem=1G,node=2,gres/gpu=4", nodes=2)) == [Jobs(2, 1, 512, 2)]
    named = "gpu:nvidia_a100-sxm4-80gb:2", "gres/gpu:1g.5gb:2", "gres:gpu:a100:1,gres:gpu:h100", "gpu,gpu:a100:1"
    for request in ("gres:gpu:2", "gres/gpu:2", "gpu:2", "gres:gpu:a100:2", "gres/gpu=2", *named):
        assert jobs(line("cpu=2,mem=1G,node=2", nodes=2, per_node=request)) == [Jobs(2, 1, 512, 2)], request
    assert jobs(line("cpu=1,mem=1G,node=1", per_node="gres/gpu_mem:2,gres/shard:2")) == [Jobs(1, 1, 1024, 0)]
    for request in ("gres:gpu:1", "gres/gpu:a100:1", "cpu=2,gres/gpu=1"):
        assert jobs(line("cpu=2,mem=1G,node=1", tasks=2, per_task=request)) == [Jobs(1, 2, 1024, 2)], request
    assert jobs(line("cpu=2,mem=1G,node=2", nodes=2, per_job="gres:gpu:4")) == [Jobs(2, 1, 512, 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
        line()[:-99],
        line("cpu=one"),
        line(nodes="four"),  # type: ignore[arg-type]
        "\n",
    ],
    ids=["an error", "a short line", "no number", "no nodes", "an empty line"],
)
def test_a_line_of_another_form_is_a_failed_read(wrong: str) -> None:
    with pytest.raises(SourceError, match=r"squeue: .*not understood"):
        jobs(line(), wrong)


@pytest.mark.parametrize("cut", [line("cpu=1,mem=1000M," + "gres/license:x=1," * 20), line(partition="p," * 60)])
def test_jobs_whose_needs_squeue_cuts_off_are_named_and_the_others_count(cut: str) -> None:
    odd, usual = jobs(cut, line())
    assert usual == Jobs(1, 1, 1000)
    assert "squeue cuts" in odd.format_need()
    assert not any(odd.fits(name, shape) for name, shape in SHAPES.items())


def test_jobs_that_wait_for_a_list_of_nodes_that_is_cut_off_do_not_count() -> None:
    nodes = ",".join(map(str, range(1, 99, 2)))
    assert jobs(line(reason=f"ReqNodeNotAvail, UnavailableNodes:c[{nodes}]"), line()) == [Jobs(1, 1, 1000)]


def test_an_empty_queue_wants_nothing() -> None:
    assert jobs() == []


# --- nodes ------------------------------------------------------------------------------------------------------------

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUTot=4 CPULoad=0.19 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=(null) NodeAddr=10.0.0.7 NodeHostName={host} Version=22.05.8 OS=Linux 6.1.0 #1 SMP "
    "RealMemory=16000 AllocMem=0 FreeMem=15000 Sockets=4 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A Partitions=grid  BootTime=2026-11-27T05:22:54 SlurmdStartTime=2026-11-27T20:00:00 "
    "LastBusyTime=2026-11-27T20:00:00 CfgTRES=cpu=4,mem=16000M,billing=4 AllocTRES={used} CapWatts=n/a CurrentWatts=0 "
    "AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s {more}\n"
)


def node(state: str = "IDLE", used: str = "", *, name: str = "hf-1-1", host: str = "", more: str = "") -> str:
    """Return a line of scontrol."""
    return NODE.format(name=name, host=host or name, state=state, used=used, more=more)


IDLE, DRAINED, BUSY = Member(4, 16_000, 0, works=False), Member(0, 0, 0, works=False), Member(0, 0, 0, works=True)


@pytest.mark.parametrize(
    ("state", "used", "expected"),
    [
        ("IDLE", "", IDLE),
        ("IDLE+DYNAMIC_NORM", "", IDLE),
        ("IDLE+CLOUD", "", IDLE),
        ("IDLE", "cpu=1,mem=1000M", Member(3, 15_000, 0, works=True)),
        ("MIXED", "cpu=1,mem=1000M", Member(3, 15_000, 0, works=True)),
        ("ALLOCATED", "cpu=4,mem=4G", Member(0, 11_904, 0, works=True)),
        ("IDLE+DRAIN", "", DRAINED),
        ("MIXED+DRAIN", "cpu=1,mem=1000M", BUSY),
        ("IDLE+COMPLETING", "", BUSY),
        ("IDLE+PLANNED", "", IDLE._replace(works=True)),
        ("IDLE+RESERVED", "", BUSY),
        ("IDLE*", "", BUSY),
        ("IDLE+NOT_RESPONDING", "", BUSY),
        ("ALLOCATED*", "cpu=4,mem=4G", BUSY),
        ("UNKNOWN", "", BUSY),
        ("DOWN*", "cpu=4,mem=4G", BUSY),
        ("DOWN*", "", None),
        ("DOWN+DYNAMIC_NORM+NOT_RESPONDING", "", None),
        ("IDLE+CLOUD+POWERED_DOWN", "", None),
    ],
)
def test_only_a_node_that_is_surely_without_work_is_idle(state: str, used: str, expected: Member | None) -> None:
    """A node that does not respond must not count as idle, because it keeps its jobs until Slurm calls it DOWN
    (slurm.conf(5), SlurmdTimeout)."""
    found = read_members(node(state, used), FLEET)
    assert found == ({} if expected is None else {"hf-1-1": expected})


@pytest.mark.parametrize(
    ("gres", "used", "gpus"),
    [
        ("gpu:2", "", 2),
        ("gpu:a100:2(S:0-1)", "", 2),
        ("gpu:2(S:0,2),shard:8", "", 2),
        ("gpu:nvidia_a100-sxm4-80gb:1(S:0),gpu:h100:1", "", 2),
        ("(null)", "", 0),
        ("gpu:2", "cpu=1,mem=1000M", 0),
    ],
)
def test_a_node_has_gpus_also_if_its_resources_have_none(gres: str, used: str, gpus: float) -> None:
    """The resources have GPUs only if AccountingStorageTRES names them. Without them, a node that works may have no
    free GPU."""
    listed = node("MIXED" if used else "IDLE", used).replace("Gres=(null)", f"Gres={gres}")
    assert read_members(listed, FLEET)["hf-1-1"].gpus == gpus


def test_a_machine_is_found_by_the_name_or_the_host_name_of_its_node() -> None:
    lines = [node(name="cloud1", host="hf-1-1.example.org"), node(name="hf-1-2"), node(name="web")]
    assert read_members("".join(lines), FLEET).keys() == {"hf-1-1", "hf-1-2"}


def test_a_reason_cannot_change_a_node() -> None:
    reason = "Reason=State=IDLE NodeName=hf-1-2 AllocTRES= [root@2026-11-27T20:00:00]"
    assert read_members(node("MIXED", "cpu=4,mem=16000M", more=reason), FLEET) == {"hf-1-1": BUSY}


def test_a_node_without_its_fields_is_a_failed_read() -> None:
    with pytest.raises(SourceError, match=r"scontrol: .*not understood"):
        read_members("NodeName=hf-1-1 State=IDLE\n", FLEET)


def test_no_nodes_are_no_members() -> None:
    assert read_members("No nodes in the system\n", FLEET) == {}


# --- both -------------------------------------------------------------------------------------------------------------


def test_the_source_reads_nodes_before_jobs_and_knows_since_when_machines_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs: Mapping[str, list[str]] = {
        "config": ["SelectType              = select/cons_tres\nSelectTypeParameters    = CR_CPU_MEMORY\n"] * 9,
        "nodes": [node(), node() + node("MIXED", "cpu=1,mem=1G", name="hf-1-2"), *[node("MIXED", "cpu=4,mem=1G")] * 7],
        "squeue": [line(), line("cpu=4,mem=1G,node=1"), *[""] * 7],
    }
    calls = []

    def run(argv: tuple[str, ...], seconds: float, most_bytes: int) -> str:
        assert (seconds, most_bytes) == (7.0, slurm.MOST_BYTES)
        assert argv[:2] == ("ssh", "head")
        asked = argv[2] if argv[2] == "squeue" else argv[-1]
        calls.append(asked)
        return outputs[asked].pop(0)

    monkeypatch.setattr(slurm, "run_program_of_source", run)
    source = Slurm(prefix=("ssh", "head"), timeout_seconds=7.0)
    first = source.read(FLEET)
    assert (dict(first.wanted), first.idle) == ({"Small": 1}, {})
    second = source.read(FLEET._replace(now=NOW + 30))
    assert (dict(second.wanted), second.idle) == ({"Small": 2}, {"hf-1-1": 30.0})
    for later in (times := [60, *range(200, 800, 140)]):
        source.read(FLEET._replace(now=NOW + later))
    last = source.read(FLEET._replace(now=NOW + 800))
    assert (dict(last.wanted), last.idle) == ({"Small": 1}, {"hf-1-2": 40.0}), "the other has left the cluster"
    assert calls == ["nodes", "config", "squeue"] * (len(times) + 3)


def test_a_job_with_its_node_for_itself_takes_what_the_node_really_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that needs a whole node must fit a template that promises 8 processors, although Slurm finds fewer
    processors on the template's nodes."""
    outputs = {slurm.CONFIG: "", slurm.NODES: node(), slurm.SQUEUE: line(shared="NO")}
    monkeypatch.setattr(slurm, "run_program_of_source", lambda argv, *_: outputs[argv])
    source, fleet = Slurm(), FLEET._replace(shapes={"Small": Shape(8, 16_000, 0)})
    source.read(fleet)
    reading = source.read(fleet)
    assert (dict(reading.wanted), dict(reading.unfit)) == ({"Small": 1}, {})


def test_a_clock_that_goes_back_delays_idle_machines_by_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = {slurm.CONFIG: "", slurm.NODES: node(), slurm.SQUEUE: ""}
    monkeypatch.setattr(slurm, "run_program_of_source", lambda argv, *_: outputs[argv])
    source = Slurm()
    idle = [source.read(FLEET._replace(now=now)).idle for now in (NOW, NOW + 30, NOW - 3600, NOW - 3570)]
    assert idle == [{}, {"hf-1-1": 30.0}, {}, {"hf-1-1": 30.0}]


def test_without_machines_only_jobs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, outputs = [], {slurm.CONFIG: "SelectTypeParameters = CR_CPU", slurm.SQUEUE: line("cpu=1,mem=62.50G,node=1")}
    monkeypatch.setattr(slurm, "run_program_of_source", lambda argv, *_: calls.append(argv) or outputs[argv])
    reading = Slurm().read(FLEET._replace(running={}))
    assert (dict(reading.wanted), reading.idle) == ({"Small": 1}, {})
    assert calls == [slurm.CONFIG, slurm.SQUEUE]
