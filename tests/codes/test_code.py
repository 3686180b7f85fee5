import json
import resource
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codeward import Code, InputError
from codeward.cli import main
from codeward.codes import _code, code_to_json

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
    begin = time.process_time()
    with pytest.raises(InputError, match="'19998' is given twice"):
        Code([[1] * 20_000], users=[str(min(user, 19_998)) for user in range(20_000)])
    assert time.process_time() - begin < 5  # looking each name up among the others took half a minute


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


def npy(shape, dtype="|b1", data=b""):
    """Bytes of an .npy file whose header says what it likes."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


def flipped(code):
    """The JSON of a code with one cell changed and the old digest."""
    content = code_to_json(code)
    content["matrix"][0][0] ^= 1
    return json.dumps(content).encode()


HOSTILE = [
    ("not-utf8.csv", b"1,0\n\xff\xfe,1\n", "line 2 is not UTF-8"),
    ("utf16.csv", "1,0\n0,1\n".encode("utf-16"), "line 1 is not UTF-8"),
    ("giant-field.csv", b"1," + b"9" * 1_000_000, "line 1, column 1: expected 0 or 1, found '9999"),
    ("giant-line.csv", b"1," * 1_500_000, "line 1 is longer than"),
    ("many-lines.csv", b"1\n" * 200_001, "more than 200,000 lines"),
    ("negative.csv", b"1,-1\n0,1\n", "line 1, column 1: expected 0 or 1, found '-1'"),
    ("absurd.csv", b"1,1e308\n", "found '1e308'"),
    ("two.csv", b"1,2\n", "found '2'"),
    ("open-end.csv", b"1,0,\n", "line 1, column 2: expected 0 or 1, found ''"),
    ("inside.csv", b"1 0,1\n", "found '1 0'"),
    ("huge.npy", npy((10**12, 10**12)), "announces an array"),
    ("overflow.npy", npy((2**62, 2**62)), "announces an array"),
    ("negative.npy", npy((-1, 4), data=b"\1\0\0\1"), "announces an array"),
    ("long.npy", npy((2, 2), data=b"\1\0\0\1\1"), "more follow"),
    ("short.npy", npy((2, 2), data=b"\1\0\0"), "fewer follow"),
    ("objects.npy", npy((1, 1), "|O", b"\x80\x04N."), "not numbers"),
    ("complex.npy", npy((1, 1), "<c16", bytes(16)), "not numbers"),
    ("text.npy", npy((1, 1), "<U1", b"1\0\0\0"), "not numbers"),
    ("structured.npy", npy((1, 1), "|V4", b"1\0\0\0"), "not numbers"),
    ("header.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65_535, "not a readable .npy"),
    ("version.npy", b"\x93NUMPY\x09\x00\x00\x00", "not a readable .npy"),
    ("flat.npy", npy((4,), data=b"\1\0\0\1"), "shape"),
    ("deep.json", b"[" * 50_000 + b"]" * 50_000, "nested too deeply"),
    ("many.json", b"[" + b"[]," * 300_000 + b"[]]", "too many"),
    ("surrogate.json", b'{"matrix": [[1]], "users": ["\\ud800"]}', "surrogates"),
    ("digits.json", b"[[" + b"1" * 10_000 + b"]]", "not readable as JSON"),
    ("text.json", b'[[1, "' + b"a" * 100_000 + b'"]]', "row 0, column 1"),
    ("first.json", b"[[-1, 1]]", "row 0, column 0"),
    ("nested.json", b"[[[1]]]", "row 0, column 0"),
    ("row.json", b"[1, 0]", "row 0"),
    ("null.json", b'{"matrix": null}', "matrix"),
    ("nan.json", b"[[NaN, 1]]", "row 0, column 0"),
    ("latin.json", b'{"matrix": [[1]], "users": ["\xe9"]}', "not readable as JSON"),
    ("digest.json", flipped(Code([[1, 1], [1, 1]])), Code([[1, 1], [1, 1]]).digest),
    ("digest-type.json", b'{"matrix": [[1]], "digest": 7}', "the file says 7"),
]


@pytest.mark.parametrize(("name", "content", "words"), HOSTILE, ids=[name for name, _, _ in HOSTILE])
def test_hostile_files_get_one_line_in_little_memory_and_time(tmp_path, name, content, words, capsys):
    (tmp_path / name).write_bytes(content)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert main(["inspect", str(tmp_path / name)]) == 2
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert len(printed.err) < 500
    assert words in printed.err


def test_a_code_that_was_changed_is_refused_with_both_digests(tmp_path):
    content = code_to_json(Code([[1, 0, 1], [1, 1, 1]]))
    content["matrix"][1][0] = 0
    (tmp_path / "code.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        Code.load(tmp_path / "code.json")
    assert Code(GOOD).digest in str(caught.value)
    assert Code([[1, 0, 1], [1, 1, 1]]).digest in str(caught.value)


def test_a_file_too_large_or_not_plain_is_refused_unread(tmp_path, monkeypatch):
    Code(GOOD).save(tmp_path / "code.csv")
    monkeypatch.setattr(_code, "MAX_FILE_BYTES", 5)
    with pytest.raises(InputError, match=r"12 bytes are too many \(5 at most\)"):
        Code.load(tmp_path / "code.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="no such code file"):
        Code.load(tmp_path / "folder.csv")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float32", ">i4"])
def test_arrays_of_any_number_type_and_order_are_read(tmp_path, dtype, order):
    np.save(tmp_path / "code.npy", np.array(GOOD, dtype=dtype, order=order))
    assert Code.load(tmp_path / "code.npy") == Code(GOOD)


def test_csv_may_have_spaces_empty_lines_and_a_byte_order_mark(tmp_path):
    (tmp_path / "code.csv").write_bytes(b"\xef\xbb\xbf1, 0 ,1\r\n\r\n 0,1,1")
    assert Code.load(tmp_path / "code.csv") == Code(GOOD)
