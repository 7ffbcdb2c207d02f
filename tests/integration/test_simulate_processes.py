"""``provisioner simulate`` with several processes at once. The results are those of one process, and no process is left
behind."""

from __future__ import annotations

import multiprocessing

from provisioner.lab.virtual import parallel_runs
from provisioner.lab.virtual.scenario_file import catalogue

FEW = catalogue()["few"]


def test_a_dead_process_is_reported_and_replaced_and_the_rest_is_as_in_one_process() -> None:
    runs = [parallel_runs.Run(FEW, seed, "exact") for seed in range(4)]
    results = parallel_runs.play_all(runs, 2)
    first = next(results)
    workers = multiprocessing.active_children()
    for process in workers:
        process.kill()
        process.join()
    rest = [*results]
    died = [result.broken for result in rest if result.broken]
    assert {result.seed for result in (first, *rest)} == {0, 1, 2, 3}
    assert 1 <= len(died) <= len(workers)
    assert all(broken == ("the run ended: its process died with exit code -9",) for broken in died)
    assert not multiprocessing.active_children()
    alone = {result.seed: result for result in parallel_runs.play_all(runs, 1)}
    assert all(result == alone[result.seed] for result in (first, *rest) if not result.broken)


def test_no_process_outlives_a_caller_that_has_seen_enough() -> None:
    results = parallel_runs.play_all([parallel_runs.Run(FEW, seed, "exact") for seed in (1, 2)], 2)
    assert next(results).scenario == "few"
    assert multiprocessing.active_children()
    results.close()
    assert not multiprocessing.active_children()
