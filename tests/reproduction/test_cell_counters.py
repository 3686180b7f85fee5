"""Cells that are counted in processes of their own while others train."""

import pytest

from codeward._errors import InputError
from codeward.reproduction import CellCounters, plan_cells, plan_study, vote_grid
from codeward.training import ModelStore


@pytest.fixture(scope="module")
def plan():
    """One code, two numbers of attackers, one epoch."""
    [(path, config)] = plan_study("figure5", smoke=True, codes=("d",), splits=("iid",), attackers=(0, 2)).items()
    return {path: config.model_copy(update={"training": config.training.model_copy(update={"epochs": 1})})}


def test_cells_are_counted_beside_the_training_as_after_it_and_scores_go(plan, tmp_path):
    records = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        with CellCounters(jobs, smoke=True, keep_scores=False) as counters:
            voted = []

            def hand_over(planned, voted=voted, counters=counters):
                assert planned.reopen().triggered[:1] == () or planned.reopen().triggered[0].scores is not None
                voted.append(planned.cell.name)
                counters.submit(planned)

            vote_grid(plan, folder, ModelStore(folder / "store"), with_scores=True, voted=hand_over)
        assert voted == ["repeat0-attackers0", "repeat0-attackers2"]
        for planned in plan_cells(plan, folder):
            assert planned.cell.has_record
            assert planned.cell.clean.scores is None
            assert planned.cell.is_whole
            assert planned.cell.folder.study(0, planned.cell.n_attackers).exists()
        records.append([planned.cell.record["figures"] for planned in plan_cells(plan, folder)])
    assert records[0] == records[1]


def test_a_cell_that_cannot_be_counted_is_an_error_and_others_stay(plan, tmp_path):
    vote_grid(plan, tmp_path, ModelStore(tmp_path / "store"))
    first, second = plan_cells(plan, tmp_path)
    votes = tmp_path / "digits-iid" / "d" / "votes" / "repeat0-attackers0-clean.npz"
    votes.write_bytes(votes.read_bytes()[:50])
    counters = CellCounters(2, smoke=True)
    for planned in (first, second):
        counters.submit(planned)
    with pytest.raises(InputError, match="repeat0-attackers0"), counters:
        pass
    assert not first.reopen().has_record
    assert second.reopen().has_record
    assert [planned.is_cut_off for planned in plan_cells(plan, tmp_path)] == [True, False]


def test_at_least_one_process_counts():
    with pytest.raises(InputError, match="jobs: expected a positive whole number, got 0"):
        CellCounters(0)


def test_repeats_in_one_pool_give_the_same_votes(plan, tmp_path):
    several = {path: config.model_copy(update={"repeats": 3}) for path, config in plan.items()}
    for pool in (1, 2):
        vote_grid(several, tmp_path / str(pool), ModelStore(tmp_path / str(pool) / "store"), pool=pool)
    files = sorted((tmp_path / "1").rglob("*.npz"))
    assert len(files) == 3 * (2 + 3)
    for file in files:
        assert (tmp_path / "2" / file.relative_to(tmp_path / "1")).read_bytes() == file.read_bytes()
