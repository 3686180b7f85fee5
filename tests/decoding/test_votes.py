"""Vote files and score files."""

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.decoding import VoteReader, load_scores, load_votes, save_scores, save_votes


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return {
        "votes": rng.integers(0, 4, (23, 5)),
        "labels": rng.integers(0, 4, 23),
        "confusion": rng.dirichlet(np.ones(4), size=(5, 4)),
        "scores": rng.random((23, 5, 4)),
    }


def test_npz_files_come_back_whole_and_in_chunks(data, tmp_path):
    save_votes(tmp_path / "v.npz", **data)
    back = load_votes(tmp_path / "v.npz")
    for name, value in data.items():
        np.testing.assert_array_equal(getattr(back, name), value)
    for size in (1, 7, 23, 100):
        parts = list(VoteReader(tmp_path / "v.npz").chunks(size, with_scores=True))
        np.testing.assert_array_equal(np.concatenate([p.votes for p in parts]), data["votes"])
        np.testing.assert_array_equal(np.concatenate([p.labels for p in parts]), data["labels"])
        np.testing.assert_array_equal(np.concatenate([p.scores for p in parts]), data["scores"])
        assert max(p.votes.shape[0] for p in parts) <= size


def test_csv_files_may_have_a_header_and_a_label_column(data, tmp_path):
    save_votes(tmp_path / "v.csv", data["votes"], data["labels"])
    back = load_votes(tmp_path / "v.csv")
    np.testing.assert_array_equal(back.votes, data["votes"])
    np.testing.assert_array_equal(back.labels, data["labels"])
    np.savetxt(tmp_path / "bare.csv", data["votes"], fmt="%d", delimiter=",")
    bare = VoteReader(tmp_path / "bare.csv")
    assert (bare.n_inputs, bare.n_models, bare.has_labels) == (23, 5, False)
    parts = list(bare.chunks(4))
    np.testing.assert_array_equal(np.concatenate([p.votes for p in parts]), data["votes"])
    with pytest.raises(InputError, match="npz"):
        save_votes(tmp_path / "v.csv", data["votes"], scores=data["scores"])


def test_pickled_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "bad.npz", votes=np.array([[{}]], dtype=object))
    with pytest.raises(InputError, match="not numbers"):
        VoteReader(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.zeros(3)}, "no array named 'votes'"),
        ({"votes": np.zeros(3, int)}, "expected shape"),
        ({"votes": np.zeros((3, 2), int), "labels": np.zeros(4, int)}, r"\(3,\)"),
        ({"votes": np.zeros((3, 2), int), "scores": np.zeros((3, 4, 2))}, "scores"),
        ({"votes": np.full((3, 2), np.nan)}, "not a whole number"),
        ({"votes": np.full((3, 2), -1)}, "0 or more"),
        ({"votes": np.zeros((3, 2), int), "scores": np.full((3, 2, 2), np.nan)}, "NaN"),
        ({"votes": np.zeros((3, 2), int), "confusion": np.full((2, 2, 2), 0.4)}, "sums to 0.8"),
        ({"votes": np.zeros((3, 2), int), "confusion": np.full((1, 2, 2), 0.5)}, "of 1 models"),
        ({"votes": np.asfortranarray(np.zeros((3, 2), int))}, "Fortran"),
    ],
)
def test_bad_npz_files_are_refused_in_words(arrays, message, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load_votes(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("v.csv", "", "empty"),
        ("v.csv", "0,1\n0\n", "line 2"),
        ("v.csv", "0,1\n0,x\n", "line 2"),
        ("v.csv", "0,nan\n", "not a whole number"),
        ("v.npz", "hello", "not a .npz"),
        ("v.txt", "0,1", "ends in"),
    ],
)
def test_bad_text_files_are_refused_in_words(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        load_votes(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        load_votes(tmp_path / "absent.npz")


def test_a_truncated_file_is_refused(data, tmp_path):
    import zipfile

    save_votes(tmp_path / "v.npz", data["votes"])
    with zipfile.ZipFile(tmp_path / "v.npz") as archive:
        content = archive.read("votes.npy")
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("votes.npy", content[:-10])
    with pytest.raises(InputError, match="fewer follow"):
        load_votes(tmp_path / "short.npz")


def test_score_files_of_the_published_defenses_come_and_go(data, tmp_path):
    torch = pytest.importorskip("torch")
    save_scores(tmp_path / "hot.pth", data["votes"], data["labels"], 4)
    back = load_scores(tmp_path / "hot.pth")
    np.testing.assert_array_equal(back.votes, data["votes"])
    np.testing.assert_array_equal(back.labels, data["labels"])
    # As their scripts write it, and as their scripts read it.
    torch.save(
        {"labels": torch.as_tensor(data["labels"]), "scores": torch.as_tensor(data["scores"])}, tmp_path / "s.pth"
    )
    np.testing.assert_array_equal(load_scores(tmp_path / "s.pth").votes, data["scores"].argmax(axis=2))
    assert torch.load(tmp_path / "hot.pth", weights_only=True)["scores"].max(2).indices.shape == (23, 5)
    torch.save(
        {"labels": torch.as_tensor(data["labels"]), "scores": torch.as_tensor(data["votes"])}, tmp_path / "i.pth"
    )
    np.testing.assert_array_equal(load_scores(tmp_path / "i.pth").votes, data["votes"])


def test_score_files_that_would_run_code_are_refused(tmp_path):
    import pickle

    pytest.importorskip("torch")

    class Trap:
        def __reduce__(self):
            return print, ("executed",)

    (tmp_path / "trap.pth").write_bytes(pickle.dumps({"labels": Trap(), "scores": 0}))
    with pytest.raises(InputError, match="without running code"):
        load_scores(tmp_path / "trap.pth")
    with pytest.raises(InputError, match="no such file"):
        load_scores(tmp_path / "absent.pth")
