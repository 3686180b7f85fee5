"""Packed results give back what was there, and refuse what they cannot keep."""

import json
import zipfile

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.cli import main
from codeward.codes import named_code
from codeward.decoding import estimate_confusion, load_votes, save_votes
from codeward.reproduction import (
    PackedRun,
    PackedSetting,
    list_packed,
    pack_setting,
    unpack_setting,
)
from codeward.runs import format_lines, pack_record_folder, parse_lines, read_record_folder, write_lines


def make_run(place, seed=0, scores=None):
    """Two cells: the second model of both says the same, validation and triggered inputs differ in number."""
    rng = np.random.default_rng(seed)
    code = named_code("d")
    (place / "plots").mkdir(parents=True)
    code.save(place / "code.json")
    (place / "config.yaml").write_text(f"dataset: digits\nseed: {seed}\n")
    (place / "plots" / "users.svg").write_text("<svg>\u00e4</svg>")
    (place / "records").mkdir()
    labels = {"validation": rng.integers(3, size=40), "clean": rng.integers(3, size=41)}
    fixed = {name: rng.integers(3, size=len(known)) for name, known in labels.items()}
    for size in (0, 1):
        record = {"n_attackers": size, "figure": 0.1 + size, "name": "\u00e9"}
        (place / "records" / f"repeat0-attackers{size}.json").write_text(json.dumps(record, indent=1) + "\n")
        (place / "records" / "other.json").write_text('{"spaced":  1}')
        votes = {name: rng.integers(3, size=(len(known), code.n_models)) for name, known in labels.items()}
        for name in votes:
            votes[name][:, 1] = fixed[name]
        confusion = estimate_confusion(votes["validation"], labels["validation"], 3) if size else None
        for name, said in votes.items():
            file = place / "votes" / f"repeat0-attackers{size}-{name}.npz"
            digest = code.digest if size else None
            save_votes(file, said, labels[name], confusion, scores and np.zeros((*said.shape, 3)), digest)


def read_all(folder):
    return {file.relative_to(folder): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_what_is_unpacked_is_what_was_packed_byte_for_byte(tmp_path):
    for number, run in enumerate("ab"):
        make_run(tmp_path / "digits-iid" / run, number)
    before = read_all(tmp_path)
    packed, left_out = pack_setting(tmp_path, "digits-iid")
    assert left_out == {}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["digits-iid.runs.npz"]
    first = read_all(tmp_path)
    # 2 runs x 2 cells x 6 models, of which one a run is always the same: 2 x (2 x 5 + 1) columns.
    with np.load(packed.file) as arrays:
        assert sorted((name, len(arrays[name])) for name in arrays.files if name != "index") == [
            ("labels-uint8-40", 2),
            ("labels-uint8-41", 2),
            ("votes-uint8-40", 22),
            ("votes-uint8-41", 22),
        ]
    stored = packed.load_votes("b/votes/repeat0-attackers1-clean.npz")
    assert stored.code_digest == packed.load_code("a").digest == named_code("d").digest
    unpack_setting(tmp_path, "digits-iid")
    assert read_all(tmp_path) == before
    plain = load_votes(tmp_path / "digits-iid/b/votes/repeat0-attackers1-clean.npz")
    for ours, given in (
        (stored.votes, plain.votes),
        (stored.labels, plain.labels),
        (stored.confusion, plain.confusion),
    ):
        np.testing.assert_array_equal(ours, given)
    pack_setting(tmp_path, "digits-iid")
    assert read_all(tmp_path) == first


def test_a_setting_grows_after_it_was_packed(tmp_path):
    make_run(tmp_path / "digits-iid" / "a")
    pack_setting(tmp_path, "digits-iid")
    make_run(tmp_path / "digits-iid" / "b", 1)
    (tmp_path / "digits-iid" / "b" / "store").mkdir()  # models are not packed, and stay
    packed, _ = pack_setting(tmp_path, "digits-iid")
    assert packed.runs == ["a", "b"]
    assert (tmp_path / "digits-iid" / "b" / "store").is_dir()


def test_a_run_with_class_scores_stays_as_it_is(tmp_path):
    make_run(tmp_path / "digits-iid" / "a")
    make_run(tmp_path / "digits-iid" / "b", scores=True)
    packed, left_out = pack_setting(tmp_path, "digits-iid")
    assert packed.runs == ["a"]
    assert "class scores" in left_out["b"]
    assert (tmp_path / "digits-iid" / "b" / "config.yaml").is_file()


def test_a_crash_between_packing_and_removing_loses_nothing(tmp_path, monkeypatch):
    make_run(tmp_path / "digits-iid" / "a")
    before = read_all(tmp_path / "digits-iid")

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("codeward.reproduction._packing._compare", crash)
        with pytest.raises(KeyboardInterrupt):
            pack_setting(tmp_path, "digits-iid")
    assert read_all(tmp_path / "digits-iid") == before
    pack_setting(tmp_path, "digits-iid")
    unpack_setting(tmp_path, "digits-iid")
    assert read_all(tmp_path / "digits-iid") == before


def test_packed_files_that_are_none_are_refused_in_one_line(tmp_path):
    make_run(tmp_path / "digits-iid" / "a")
    packed, _ = pack_setting(tmp_path, "digits-iid")
    with pytest.raises(InputError, match=r"no b/config\.yaml in it"):
        packed.read_text("b/config.yaml")
    with pytest.raises(InputError, match="no vote file"):
        packed.load_votes("a/config.yaml")
    with pytest.raises(InputError, match="no run b in it, but a"):
        packed.unpack_run("b", tmp_path / "b")
    head, *lines = read_index(packed)
    for name in ("../../stolen.json", "a/../../votes/x.json", "../config.yaml", "a/store/x.json"):
        write_index(packed, [head, *lines, {"file": name, "text": ""}])
        with pytest.raises(InputError, match="is no file of a run"):
            unpack_setting(tmp_path, "digits-iid")
    for content in ([], [3], [{"format": "else"}], [head, {"text": ""}], [head, 3]):
        write_index(packed, content)
        with pytest.raises(InputError, match="not a codeward-results/2 file"):
            _ = PackedSetting(packed.path).files
    packed.file.write_bytes(packed.file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"not a \.npz file"):
        _ = PackedSetting(packed.path).files


def test_the_command_packs_and_unpacks_a_grid(tmp_path, capsys):
    make_run(tmp_path / "digits-iid" / "a")
    make_run(tmp_path / "digits-alpha1" / "a", 1)
    before = read_all(tmp_path)
    some = ["reproduce", "pack", "-o", str(tmp_path), "--dataset", "digits", "--split"]
    assert main([*some, "iid"]) == 0
    assert capsys.readouterr().out == "packed: digits-iid\n"
    assert main([*some, "alpha7"]) == 2
    assert "no setting digits-alpha7 to pack, but digits-alpha1, digits-iid" in capsys.readouterr().err
    assert main(["reproduce", "pack", "-o", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == ["digits-alpha1"]
    assert [packed.path.name for packed in list_packed(tmp_path)] == ["digits-alpha1", "digits-iid"]
    assert main(["reproduce", "unpack", "-o", str(tmp_path)]) == 0
    assert read_all(tmp_path) == before


def read_index(packed):
    with np.load(packed.file) as arrays:
        return parse_lines(arrays["index"].tobytes(), "index")


def write_index(packed, lines):
    with np.load(packed.file) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    np.savez(packed.file, **columns | {"index": np.frombuffer(format_lines(lines), dtype=np.uint8)})


def spoil(packed, **changes):
    """Write the index again with entries changed: by file, what they become."""
    head, *entries = read_index(packed)
    write_index(packed, [head, *({**entry, **changes.get(entry["file"], {})} for entry in entries)])
    return PackedSetting(packed.path)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": ["uint8-40", None]},
        {"labels": ["uint8-40", [0]]},
        {"labels": ["uint8-41", 0]},
        {"labels": 3},
        {"votes": ["uint8-40", 0]},
        {"votes": ["uint8-40", []]},
        {"votes": ["uint8-40", [-1]]},
        {"votes": ["uint8-40", {"a": 1}]},
        {"confusion": ["float64", 10**9]},
        {"confusion": ["float64", -3]},
        {"confusion": ["no type", 3]},
        {"confusion": 1},
        {"code_digest": 7},
    ],
)
def test_an_index_that_says_something_else_of_votes_is_refused_in_a_line(tmp_path, change):
    make_run(tmp_path / "digits-iid" / "a")
    name = "a/votes/repeat0-attackers1-validation.npz"
    packed = spoil(pack_setting(tmp_path, "digits-iid")[0], **{name: change})
    with pytest.raises(InputError, match="is no vote file"):
        packed.load_votes(name)


def test_packed_columns_with_a_damaged_header_are_refused_in_a_line(tmp_path):
    make_run(tmp_path / "digits-iid" / "a")
    packed, _ = pack_setting(tmp_path, "digits-iid")
    for header in (b"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 40\n", b"{'descr': '|u1', (\n\n"):
        index = zipfile.ZipFile(packed.file).read("index.npy")
        with zipfile.ZipFile(packed.file, "w", zipfile.ZIP_LZMA) as archive:
            archive.writestr("index.npy", index)
            content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(40)
            archive.writestr("votes-uint8-40.npy", content)
        with pytest.raises(InputError, match="its header is damaged"):
            PackedSetting(packed.path).load_votes("a/votes/repeat0-attackers1-validation.npz")


def test_what_a_packed_run_says_of_itself_is_checked(tmp_path):
    make_run(tmp_path / "digits-iid" / "a")
    packed, _ = pack_setting(tmp_path, "digits-iid")
    record = "a/records/repeat0-attackers1.json"
    spoilt = spoil(packed, **{"a/config.yaml": {"text": "seed: 2001-99-99"}, "a/code.json": {"json": [1]}})
    with pytest.raises(InputError, match="not readable as YAML"):
        _ = PackedRun(spoilt, "a").config
    with pytest.raises(InputError, match="no code"):
        spoilt.load_code("a")
    entries = {entry.get("file"): entry for entry in read_index(packed)}
    entries[record] = {"file": record, "text": "{no JSON"}
    write_index(packed, entries.values())
    with pytest.raises(InputError, match="not readable as JSON"):
        PackedSetting(packed.path).read_json(record)


def test_records_of_a_study_are_packed_into_one_file_and_plain_ones_count_first(tmp_path, capsys):
    for study in ("samples", "writers"):
        (tmp_path / study).mkdir()
        (tmp_path / study / "one.json").write_text('{"figure": 0.1, "name": "\u00e9"}')
        (tmp_path / study / "two.json").write_text("[2]")
    make_run(tmp_path / "digits-iid" / "a")
    assert main(["reproduce", "pack", "-o", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == ["digits-iid", "samples", "writers"]
    folder = tmp_path / "samples"
    assert [file.name for file in folder.iterdir()] == ["records.jsonl.gz"]
    first = read_all(folder)
    assert read_record_folder(folder) == {"one.json": {"figure": 0.1, "name": "\u00e9"}, "two.json": [2]}
    (folder / "two.json").write_text("[3]")
    assert read_record_folder(folder)["two.json"] == [3]
    assert pack_record_folder(folder) == 2
    assert read_record_folder(folder)["two.json"] == [3]
    (folder / "two.json").write_text("[2]")
    pack_record_folder(folder)
    assert read_all(folder) == first  # the same records give the same bytes
    for content in ([3], [{"file": "x.json"}]):
        write_lines(folder / "records.jsonl.gz", content)
        with pytest.raises(InputError, match="not the records of a folder"):
            read_record_folder(folder)
    (folder / "records.jsonl.gz").write_bytes(b"\x1f\x8b nonsense")
    with pytest.raises(InputError, match="not readable"):
        read_record_folder(folder)
