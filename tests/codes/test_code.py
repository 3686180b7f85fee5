import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codeward import Code, InputError

GOOD = [[1, 0, 1], [0, 1, 1]]


def test_symbols_are_properties():
    code = Code(GOOD)
    assert (code.n_models, code.n_users, code.row_weight) == (2, 3, 2)
    assert code.utilization == pytest.approx(2 / 3)
    assert code.column(0).tolist() == [True, False]
    assert code.pattern([0, 1]).tolist() == [True, True]
    assert code.pattern([]).tolist() == [False, False]


def test_matrix_is_a_read_only_copy():
    source = np.array(GOOD)
    code = Code(source)
    source[0, 0] = 0
    assert code.matrix[0, 0]
    with pytest.raises(ValueError):
        code.matrix[0, 0] = False


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([[1, 0], [0, 0]], "row 1"),
        ([[1, 0], [1, 0]], "column 1"),
        ([[1, 2], [0, 1]], "row 0, column 1"),
        ([[1, float("nan")], [0, 1]], "row 0, column 1"),
        ([[1, -1], [0, 1]], "row 0, column 1"),
        ([], "at least one row"),
        ([[]], "at least one row"),
        ([1, 0], "shape"),
        ([["a", "b"]], "0 or 1"),
        ([[1], [1, 0]], "differ in length"),
    ],
)
def test_anything_else_is_refused_by_place(matrix, words):
    with pytest.raises(ValueError, match=words):
        Code(matrix)


def test_names_are_checked():
    assert Code(GOOD, users=["a", "b", "c"]).user_name(2) == "c"
    with pytest.raises(InputError, match="2 user names for 3"):
        Code(GOOD, users=["a", "b"])
    with pytest.raises(InputError, match="'a' is given twice"):
        Code(GOOD, users=["a", "a", "b"])


@pytest.mark.parametrize("user", [-1, 3])
def test_a_user_out_of_range_is_refused(user):
    with pytest.raises(InputError, match=r"0\.\.2"):
        Code(GOOD).column(user)


def test_equality_is_by_value_and_digest_by_matrix():
    assert Code(GOOD) == Code(np.array(GOOD, dtype=bool))
    assert hash(Code(GOOD)) == hash(Code(GOOD))
    assert Code(GOOD) != Code(GOOD, users="abc")
    assert Code(GOOD).digest == Code(GOOD, users="abc").digest
    # The same bits in another shape are another code.
    assert Code([[1, 1, 1, 1]]).digest != Code([[1, 1], [1, 1]]).digest


matrices = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(lambda shape: arrays(bool, shape))


@given(matrices, st.sampled_from([".csv", ".npy", ".json"]))
def test_files_round_trip(tmp_path_factory, matrix, suffix):
    matrix[:, 0] = True
    matrix[0] = True
    path = tmp_path_factory.mktemp("codes") / f"code{suffix}"
    code = Code(matrix)
    code.save(path)
    assert Code.load(path) == code
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file left behind


def test_json_keeps_names(tmp_path):
    code = Code(GOOD, users=["x", "y", "z"], models=["p", "q"], construction="by hand")
    code.save(tmp_path / "code.json")
    loaded = Code.load(tmp_path / "code.json")
    assert loaded == code
    assert loaded.construction == "by hand"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "1,0\n0,x\n", "line 2, column 1"),
        ("a.csv", "1,0\n0\n", "line 2 has 1 entries"),
        ("a.csv", "", "no rows"),
        ("a.json", "{", "not a readable code file"),
        ("a.json", '{"rows": []}', "matrix"),
        ("a.json", '{"matrix": [[1, 0], [0, 1]], "users": [1, 2]}', "list of names"),
        ("a.npy", "nonsense", "not a readable code file"),
        ("a.txt", "1,0\n", "ends in"),
    ],
)
def test_broken_files_are_refused_by_name_and_place(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=words) as caught:
        Code.load(tmp_path / name)
    assert name in str(caught.value)


def test_pickled_arrays_are_refused(tmp_path):
    np.save(tmp_path / "evil.npy", np.array([[1, {}]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="not a readable code file"):
        Code.load(tmp_path / "evil.npy")


def test_a_missing_file_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="no such code file"):
        Code.load(tmp_path / "nowhere.csv")


def test_json_of_a_plain_matrix_is_read(tmp_path):
    (tmp_path / "m.json").write_text(json.dumps(GOOD))
    assert Code.load(tmp_path / "m.json") == Code(GOOD)
