"""Thousands of damaged files through every reader: one line of `InputError`, or an answer; nothing else."""

import io
import json
import zipfile

import numpy as np
import pytest

from codeward._errors import InputError
from codeward._files import read_json, read_npz
from codeward.codes import Code
from codeward.decoding import load_scores, load_votes, save_votes
from codeward.runs import load_record

#: Bytes that mean something in one of the formats.
TELLING = [b"\x00", b"\xff", b"PK\x03\x04", b"PK\x01\x02", b"\x93NUMPY", b"{", b"[", b'"', b",", b"\n", b"-1", b"1e999"]
TELLING += [b"nan", b"\\ud800", b"(", b"9" * 30, b"True", b"\x80\x04."]


def make_files(folder):
    """Whole files of every kind, by name."""
    rng = np.random.default_rng(0)
    votes, labels = rng.integers(0, 4, (20, 5)), rng.integers(0, 4, 20)
    scores = np.log(rng.dirichlet(np.ones(4), size=(20, 5)))
    confusion = rng.dirichlet(np.ones(4), size=(5, 4))
    code = Code(np.eye(5, dtype=int))
    save_votes(folder / "packed.npz", votes, labels, confusion, scores, code.digest)
    np.savez(folder / "plain.npz", votes=votes, labels=labels)
    save_votes(folder / "votes.csv", votes, labels)
    for name in ("code.csv", "code.npy", "code.json"):
        code.save(folder / name)
    (folder / "record.json").write_text(json.dumps({"format": 1, "figures": {"a": [1, 2.5, None]}, "b": "ä"}))
    readers = {
        "packed.npz": (load_votes, read_npz),
        "plain.npz": (load_votes, read_npz),
        "votes.csv": (load_votes,),
        "code.csv": (Code.load,),
        "code.npy": (Code.load,),
        "code.json": (Code.load, read_json),
        "record.json": (read_json, load_record),
    }
    return {name: ((folder / name).read_bytes(), found) for name, found in readers.items()}


def repack(raw, rng):
    """Damage a member of an archive, with a directory and a checksum that fit it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as whole, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        chosen = rng.integers(len(whole.namelist()))
        for place, name in enumerate(whole.namelist()):
            content = whole.read(name)
            # Mostly in the header of the array.
            made.writestr(name, mutate(content, rng, 140) if place == chosen else content)
    return out.getvalue()


def mutate(raw, rng, within=None):
    """Change, insert, remove or repeat a few bytes."""
    data = bytearray(raw)
    for _ in range(rng.integers(1, 5)):
        place = int(rng.integers(0, min(len(data), within or len(data)) + 1))
        kind = rng.integers(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[place : place + int(rng.integers(1, 20))] = b""
        elif kind == 2:
            data[place:place] = TELLING[rng.integers(len(TELLING))]
        elif kind == 3:
            piece = TELLING[rng.integers(len(TELLING))]
            data[place : place + len(piece)] = piece
        elif kind == 4:
            data[place:place] = data[place : place + int(rng.integers(1, 200))]
        else:
            del data[place:]
    return bytes(data)


def try_to(read, file, where):
    """Return the complaint of a reader, None where it reads; fail on anything but one line."""
    try:
        with np.errstate(all="ignore"):
            read(file)
    except InputError as error:
        complaint = str(error)
    except BaseException as error:
        pytest.fail(f"{read.__name__} of {file.name}, {where}: {error!r}")
    else:
        return None
    if "\n" in complaint or len(complaint) > 600:
        pytest.fail(f"{read.__name__} of {file.name}, {where}: not a line: {complaint!r}")
    return complaint


def fuzz(folder, count, seed):
    """Return how many files were read and how many refused."""
    rng = np.random.default_rng(seed)
    files = make_files(folder)
    fine, refused = 0, 0
    for number in range(count):
        name = list(files)[number % len(files)]
        raw, readers = files[name]
        spoilt = repack(raw, rng) if name.endswith(".npz") and rng.random() < 0.5 else mutate(raw, rng)
        (folder / name).write_bytes(spoilt)
        for read in readers:
            complaint = try_to(read, folder / name, f"seed {seed}, number {number}: {spoilt[:400]!r}")
            fine, refused = fine + (complaint is None), refused + (complaint is not None)
    return fine, refused


def test_damaged_files_are_read_or_refused_in_a_line(tmp_path):
    fine, refused = fuzz(tmp_path, 2400, 0)
    assert fine > 40
    assert refused > 1500


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_more_damaged_files_are_read_or_refused_in_a_line(tmp_path, seed):
    fuzz(tmp_path, 12_000, seed)


def test_damaged_score_files_are_read_or_refused_in_a_line(tmp_path):
    torch = pytest.importorskip("torch")
    out, rng = io.BytesIO(), np.random.default_rng(0)
    torch.save({"labels": torch.zeros(4, dtype=torch.int64), "scores": torch.rand(4, 3, 2)}, out)
    for number in range(300):
        (tmp_path / "s.pth").write_bytes(mutate(out.getvalue(), rng))
        try_to(load_scores, tmp_path / "s.pth", f"number {number}")


@pytest.mark.parametrize(
    "content",
    [
        {"labels": [0], "scores": "text"},
        {"labels": [0], "scores": None},
        {"labels": [0], "scores": {"a": 1}},
        {"labels": [0], "scores": [[1, 2], [3]]},
        {"labels": [0], "scores": [[[1j]]]},
        {"labels": ["a"], "scores": [[0]]},
        {"labels": [0.5], "scores": [[0]]},
        {"labels": [0], "scores": [[2**80]]},
        [1, 2],
    ],
)
def test_score_files_with_something_else_in_them_are_refused(tmp_path, content):
    torch = pytest.importorskip("torch")
    torch.save(content, tmp_path / "s.pth")
    with pytest.raises(InputError):
        load_scores(tmp_path / "s.pth")
    many = torch.zeros(1, 1, 1).expand(1 << 20, 1 << 12, 2)
    torch.save({"labels": torch.zeros(1), "scores": many}, tmp_path / "wide.pth")
    with pytest.raises(InputError, match="too large"):
        load_scores(tmp_path / "wide.pth")
