"""Bounded readers and atomic writes."""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from codeward._errors import InputError, TooLargeError
from codeward._files import (
    ArrayFile,
    read_bytes,
    read_json,
    read_npy,
    read_npz,
    read_text,
    write_atomic,
    write_text_atomic,
)


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npy_header(text, data=b""):
    body = text.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body + data


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


def test_a_read_is_bounded(tmp_path):
    (tmp_path / "f").write_bytes(b"12345")
    assert read_bytes(tmp_path / "f", 5) == b"12345"
    with pytest.raises(TooLargeError, match="5 bytes are too many"):
        read_bytes(tmp_path / "f", 4)
    with pytest.raises(InputError, match="no such file"):
        read_bytes(tmp_path / "absent")
    with pytest.raises(InputError, match="not a plain file"):
        read_bytes(tmp_path)
    with pytest.raises(InputError, match="not a path"):
        read_bytes("a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a plain file"):
        read_bytes(tmp_path / "pipe")


def test_text_is_utf_8(tmp_path):
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\xc3\xa4")
    assert read_text(tmp_path / "f") == "aä"
    (tmp_path / "f").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match="not UTF-8 at byte 2"):
        read_text(tmp_path / "f")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not readable as JSON"),
        (b"{", "not readable as JSON"),
        (b"\xff", "utf-8"),
        (b"[" * 50_000, "nested too deeply|not readable"),
        (b"[" * 50_000 + b"]" * 50_000, "nested"),
        (b"[" * 100 + b"]" * 100, "64 levels"),
        (b'{"a": 1, "b": {"a": 1, "a": 2}}', "'a' is given twice"),
        (b'["\\ud800"]', "utf-8"),
        (b'{"\\udfff": 1}', "utf-8"),
        (b"1" * 5000, "not readable as JSON"),
    ],
)
def test_hostile_json_is_refused_in_a_line(raw, message, tmp_path):
    (tmp_path / "f.json").write_bytes(raw)
    with pytest.raises(InputError, match=message) as caught:
        read_json(tmp_path / "f.json")
    one_line(caught)


def test_json_comes_back(tmp_path):
    content = {"a": [1, 2.5, None, {"b": "ä😀"}], "c": True}
    write_text_atomic(tmp_path / "f.json", json.dumps(content))
    assert read_json(tmp_path / "f.json") == content
    with pytest.raises(TooLargeError):
        read_json(tmp_path / "f.json", 3)


def test_arrays_come_back(tmp_path):
    arrays = {
        "a": np.arange(6).reshape(2, 3),
        "b": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "c": np.zeros((0, 4), dtype=np.uint8),
        "d": np.array(7, dtype=">i4"),
    }
    np.savez_compressed(tmp_path / "f.npz", **arrays)
    back = read_npz(tmp_path / "f.npz", ["a"])
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        np.save(tmp_path / "f.npy", array)
        np.testing.assert_array_equal(read_npy(tmp_path / "f.npy"), array)
    assert list(read_npz(tmp_path / "f.npz", ["a"], ["d", "e"])) == ["a", "d"]
    with ArrayFile(tmp_path / "f.npz") as file:
        np.testing.assert_array_equal(np.concatenate(list(file.rows("a", [1, 1]))), arrays["a"])
    with pytest.raises(InputError, match="no array named 'e'"):
        read_npz(tmp_path / "f.npz", ["e"])
    with pytest.raises(TooLargeError, match="100 bytes when unpacked are too many"):
        read_npz(tmp_path / "f.npz", limit=99)
    with pytest.raises(InputError, match="not numbers"):
        read_npz(tmp_path / "f.npz", kinds="f")


FORMS = "{{'descr': '{}', 'fortran_order': False, 'shape': {}}}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable .npy"),
        (b"hello world", "not a readable .npy"),
        (npy(np.arange(4))[:-1], "fewer follow"),
        (npy(np.arange(4)) + b"x", "more follow"),
        (npy_header(FORMS.format("<i8", "(-4,)")), "announces an array of shape"),
        (npy_header(FORMS.format("<i8", "(1000000000000,)")), "fewer follow"),
        (npy_header(FORMS.format("<i8", "(1000000000000, 0)")), "empty array"),
        (npy_header(FORMS.format("<i8", "(2.5,)")), "announces an array of shape"),
        (npy_header(FORMS.format("<i8", "(True,)"), b"x" * 8), "announces an array of shape"),
        (npy_header(FORMS.format("<i8", "(" + "9" * 4000 + ",)")), "announces an array of shape"),
        (npy_header(FORMS.format("|O", "(1,)"), b"x" * 8), "not numbers"),
        (npy_header(FORMS.format("<U4", "(1,)"), b"x" * 16), "not numbers"),
        (npy_header(FORMS.format("|V0", "(1,)")), "not numbers"),
        (npy_header(FORMS.format("zzz", "(1,)")), "header"),
        (npy_header("(" * 9000), "header"),
        (npy_header("[]"), "header"),
        (npy_header("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1,)}", b"x" * 8), "not numbers"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "header of"),
    ],
)
def test_hostile_arrays_are_refused_in_a_line(content, message, tmp_path):
    (tmp_path / "f.npy").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_npy(tmp_path / "f.npy")
    one_line(caught)
    with zipfile.ZipFile(tmp_path / "f.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(InputError, match=message) as caught:
        read_npz(tmp_path / "f.npz")
    one_line(caught)


def test_hostile_archives_are_refused_in_a_line(tmp_path):
    file = tmp_path / "f.npz"
    content = npy(np.arange(1000) % 7)

    def refuse(message, raw=None):
        if raw is not None:
            file.write_bytes(raw)
        with pytest.raises(InputError, match=message) as caught:
            read_npz(file)
        one_line(caught)

    refuse("not a .npz file", b"hello")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.npy", content)
    refuse("numpy does not write")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "x")
    refuse("no array")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", content)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", content)
    refuse("twice")
    np.savez(file, a=np.arange(1000))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    refuse("damaged.*CRC", bytes(raw))
    np.savez_compressed(file, a=np.arange(1000) % 7)
    raw = bytearray(file.read_bytes())
    place = raw.index(b"PK\x01\x02")
    for offset, value in ((8, 1), (10, 99)):
        changed = raw.copy()
        changed[place + offset] = value
        refuse("encrypted" if offset == 8 else "numpy does not write", bytes(changed))
    # The directory says that the member is larger than it is, or smaller.
    for size in (10**9, 500):
        changed = raw.copy()
        changed[place + 24 : place + 28] = struct.pack("<I", size)
        refuse("fewer follow|damaged|more follow", bytes(changed))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_directory_that_hides_an_array_is_damage_whatever_byte_of_it_is_wrong(tmp_path, save):
    """Every byte of the directory and its end, every bit: the arrays are all there and the same, or it is refused."""
    save(tmp_path / "whole.npz", votes=np.arange(6).reshape(2, 3), labels=np.array([1, 2]), code_digest=np.array("a"))
    raw = (tmp_path / "whole.npz").read_bytes()
    file, refused = tmp_path / "f.npz", 0
    for place in range(raw.index(b"PK\x01\x02"), len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[place] ^= 1 << bit
            file.write_bytes(changed)
            try:
                found = read_npz(file, ("votes",), ("labels", "code_digest"), kinds="biufU")
            except InputError:
                refused += 1
            else:
                assert sorted(found) == ["code_digest", "labels", "votes"]
                assert found["labels"].tolist() == [1, 2]
    assert refused > 400


def test_a_member_that_the_directory_does_not_list_is_noticed(tmp_path):
    """Swallowed by another entry's comment, renamed, or cut out of the directory."""
    np.savez(tmp_path / "whole.npz", votes=np.arange(3), labels=np.array([1, 2, 3]))
    raw = (tmp_path / "whole.npz").read_bytes()
    first, second, end = raw.index(b"PK\x01\x02"), raw.rindex(b"PK\x01\x02"), raw.rindex(b"PK\x05\x06")
    comment = bytearray(raw)
    comment[first + 32 : first + 34] = struct.pack("<H", end - second)
    renamed = raw[:second] + raw[second:].replace(b"labels", b"babels")
    cut = bytearray(raw[:second] + raw[end:])
    cut[-22 + 8 : -22 + 16] = struct.pack("<HHI", 1, 1, second - first)
    for spoilt in (comment, renamed, cut):
        (tmp_path / "f.npz").write_bytes(spoilt)
        with zipfile.ZipFile(tmp_path / "f.npz") as archive:
            assert "labels.npy" not in archive.namelist()  # it would have been taken for a file without labels
        with pytest.raises(InputError, match="its directory does not list what is in it"):
            read_npz(tmp_path / "f.npz", ("votes",), ("labels",))


def test_archives_of_writers_that_cannot_seek_are_read(tmp_path):
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.content = b""

        def writable(self):
            return True

        def write(self, part):
            self.content += bytes(part)
            return len(part)

    pipe = Pipe()
    np.savez(pipe, a=np.arange(4), b=np.arange(2))
    (tmp_path / "f.npz").write_bytes(pipe.content)
    assert read_npz(tmp_path / "f.npz")["b"].tolist() == [0, 1]


def test_what_inflates_beyond_its_limit_is_not_unpacked(tmp_path):
    import tracemalloc

    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(200_000_000, dtype=np.uint8))
    tracemalloc.start()
    with pytest.raises(TooLargeError, match="200,000,000 bytes when unpacked"):
        read_npz(tmp_path / "bomb.npz", limit=1 << 20)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    write_text_atomic(tmp_path / "f", "old")

    def fail(out):
        out.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "f", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "old"
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_full_disk_names_the_file(tmp_path):
    def fill(_):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*card\.html'"):
        write_atomic(tmp_path / "card.html", fill)


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    die = (
        "import os, sys; from codeward._files import write_atomic\n"
        "write_atomic(sys.argv[1], lambda out: os.kill(os.getpid(), 9))"
    )
    subprocess.run([sys.executable, "-c", die, str(tmp_path / "f")], check=False)
    (left,) = tmp_path.iterdir()
    alive = tmp_path / left.name.replace(left.name.split(".")[-3], str(os.getpid()))
    elsewhere = tmp_path / left.name.replace(left.name.split(".")[-4], "00000000")
    other = tmp_path / ".mine.tmp"
    for path in (alive, elsewhere, other):
        path.write_bytes(b"")
    write_text_atomic(tmp_path / "g", "new")
    assert set(tmp_path.iterdir()) == {alive, elsewhere, other, tmp_path / "g"}


def test_names_of_arrays_are_told_in_one_line(tmp_path):
    np.savez(tmp_path / "a.npz", **{"odd\nname": np.zeros(2)})
    with pytest.raises(InputError, match="no array named 'votes'") as caught:
        read_npz(tmp_path / "a.npz", ("votes",))
    assert "\n" not in str(caught.value)
