import gzip
import hashlib
import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.data import _dataset_files
from codeward.data._dataset_files import (
    DataFile,
    parse_cifar_binary,
    parse_cifar_python,
    parse_idx,
    parse_idx_pair,
    read_checked,
    read_npz,
)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def md5(content):
    return hashlib.md5(content).hexdigest()


IMAGES = np.random.default_rng(0).integers(0, 256, (7, 5, 4), dtype=np.uint8)
LABELS = np.arange(7, dtype=np.uint8)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_an_idx_file_is_read_as_it_was_written(shape):
    array = np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)
    assert np.array_equal(parse_idx(idx(array), "x"), array)


@pytest.mark.parametrize("cut", [0, 3, 4, 10, 15, -1])
def test_an_idx_file_cut_anywhere_is_refused(cut):
    with pytest.raises(InputError, match="pictures"):
        parse_idx(idx(IMAGES)[:cut], "pictures")


def test_an_idx_file_with_bytes_behind_the_data_or_of_another_type_is_refused():
    with pytest.raises(InputError, match="header says shape"):
        parse_idx(idx(IMAGES) + b"x", "pictures")
    with pytest.raises(InputError, match="magic"):
        parse_idx(b"\0\0\x0d" + idx(IMAGES)[3:], "pictures")


def test_a_header_that_promises_more_than_any_memory_is_refused_by_its_length():
    with pytest.raises(InputError, match="truncated"):
        parse_idx(bytes([0, 0, 8, 4]) + b"\xff" * 16, "huge")


def test_images_and_labels_that_are_swapped_or_do_not_go_together_are_refused():
    samples = parse_idx_pair(idx(IMAGES), idx(LABELS), "set", (1, 5, 4))
    assert np.array_equal(samples.images[:, 0], IMAGES)
    assert np.array_equal(samples.labels, LABELS)
    with pytest.raises(InputError, match="swapped"):
        parse_idx_pair(idx(LABELS), idx(IMAGES), "set", (1, 5, 4))
    with pytest.raises(InputError, match="do not go with"):
        parse_idx_pair(idx(IMAGES), idx(LABELS[:-1]), "set", (1, 5, 4))
    with pytest.raises(InputError, match="do not go with"):
        parse_idx_pair(idx(IMAGES), idx(LABELS), "set", (1, 28, 28))


def test_a_file_is_read_plain_or_packed_and_only_when_its_checksum_matches(tmp_path):
    content = idx(IMAGES)
    file = DataFile("part", md5(content))
    with pytest.raises(InputError, match="missing"):
        read_checked(tmp_path, file)
    (tmp_path / "part.gz").write_bytes(gzip.compress(content))
    assert read_checked(tmp_path, file) == content
    (tmp_path / "part").write_bytes(content)
    assert read_checked(tmp_path, file) == content
    (tmp_path / "part").write_bytes(content[:-1] + b"\0")
    with pytest.raises(InputError, match=r"part: damaged.*md5"):
        read_checked(tmp_path, file)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda packed: packed[:-9],
        lambda packed: packed[: len(packed) // 2],
        lambda packed: packed[:-8] + bytes(8),
        lambda packed: b"no gzip at all",
        lambda packed: packed + b"more",
        lambda packed: b"",
    ],
)
def test_a_broken_gzip_file_is_refused_in_one_line(tmp_path, break_it):
    content = idx(IMAGES)
    (tmp_path / "part.gz").write_bytes(break_it(gzip.compress(content)))
    with pytest.raises(InputError, match=r"part\.gz"):
        read_checked(tmp_path, DataFile("part", md5(content)))


def test_a_packed_file_with_a_published_checksum_is_not_unpacked_before_it_matched(tmp_path):
    (tmp_path / "part.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(InputError, match="damaged or not the official file"):
        read_checked(tmp_path, DataFile("part", None, packed_md5="0" * 32))


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(_dataset_files, "MAX_UNPACKED_BYTES", 10_000)
    (tmp_path / "part.gz").write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(InputError, match="unpacks to more"):
        read_checked(tmp_path, DataFile("part", "0" * 32))


def cifar_records(n=3):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, n, dtype=np.uint8)
    return images, labels, b"".join(bytes([y]) + x.tobytes() for x, y in zip(images, labels, strict=True))


def test_a_cifar_binary_batch_is_read_and_a_broken_one_refused():
    images, labels, content = cifar_records()
    samples = parse_cifar_binary(content, "batch")
    assert np.array_equal(samples.images, images)
    assert np.array_equal(samples.labels, labels)
    for broken in (b"", content[:-1], content + b"x"):
        with pytest.raises(InputError, match=r"batch.*truncated"):
            parse_cifar_binary(broken, "batch")
    with pytest.raises(InputError, match="label 77"):
        parse_cifar_binary(bytes([77]) + content[1:], "batch")


def test_a_cifar_python_batch_is_read_once_its_checksum_matched():
    images, labels, _ = cifar_records()
    content = pickle.dumps({"data": images.reshape(3, -1), "labels": labels.tolist()})
    samples = parse_cifar_python(content, md5(content), "batch")
    assert np.array_equal(samples.images, images)
    assert np.array_equal(samples.labels, labels)
    with pytest.raises(InputError, match="not opened"):
        parse_cifar_python(content, "0" * 32, "batch")


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_malicious_pickle_is_not_run_with_or_without_a_matching_checksum(tmp_path):
    trap = tmp_path / "trap"
    content = pickle.dumps({"data": Touch(str(trap)), "labels": []})
    for checksum in ("0" * 32, md5(content)):
        with pytest.raises(InputError, match="batch"):
            parse_cifar_python(content, checksum, "batch")
    assert not trap.exists()
    pickle.loads(content)
    assert trap.exists()  # the trap works where nothing guards it


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1+1'\ntR.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
        b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.",
        b"",
        b".",
        b"\x80\x04K\x01.",
        pickle.dumps({"labels": [1]}),
        pickle.dumps({"data": np.zeros((2, 5), np.uint8), "labels": [1, 2]}),
        pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}),
        pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}),
    ],
)
def test_a_pickle_that_is_no_batch_of_arrays_is_refused_though_its_checksum_matches(content):
    with pytest.raises(InputError, match="not a CIFAR-10 batch"):
        parse_cifar_python(content, md5(content), "batch")


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


GOOD = {"images": np.zeros((4, 6, 5), np.uint8), "labels": np.array([0, 1, 2, 1])}


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (np.zeros((4, 6, 5), np.uint8), (4, 1, 6, 5)),
        (np.zeros((4, 6, 5, 3), np.uint8), (4, 3, 6, 5)),
        (np.zeros((4, 3, 6, 5), np.uint8), (4, 3, 6, 5)),
        (np.full((4, 6, 5), 0.5), (4, 1, 6, 5)),
    ],
)
def test_an_npz_may_lay_out_its_images_in_the_usual_ways(tmp_path, images, shape):
    train, test, groups = read_npz(save(tmp_path / "x.npz", **(GOOD | {"images": images})))
    assert train.images.shape == shape
    assert train.images.dtype == np.uint8
    assert test is None
    assert groups is None


def test_float_images_are_scaled_to_bytes(tmp_path):
    images = np.linspace(0, 1, 120).reshape(4, 6, 5)
    train, _, _ = read_npz(save(tmp_path / "x.npz", **(GOOD | {"images": images})))
    assert np.array_equal(train.images[:, 0], np.round(images * 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.full((4, 6, 5), np.nan)}, "finite"),
        ({"images": np.full((4, 6, 5), 1.01)}, "within 0..1"),
        ({"images": np.zeros((4, 6, 5), np.int16)}, "int16"),
        ({"images": np.zeros((4, 6), np.uint8)}, "shape"),
        ({"images": np.zeros((4, 7, 6, 5), np.uint8)}, "shape"),
        ({"images": np.zeros((0, 6, 5), np.uint8), "labels": np.zeros(0, int)}, "shape"),
        ({"images": np.zeros((4, 0, 5), np.uint8)}, "shape"),
        ({"labels": np.zeros(3, int)}, "4 whole numbers"),
        ({"labels": np.zeros(4)}, "whole numbers"),
        ({"labels": np.array([0, 1, -1, 0])}, "-1"),
        ({"labels": np.array([0, 1, 2**62, 0])}, "numbered from 0"),
        ({"labels": np.array([0, 1, 2**64 - 1, 0], np.uint64)}, "numbered from 0"),
        ({"test_images": np.zeros((2, 6, 5), np.uint8)}, "go together"),
        ({"test_images": np.zeros((2, 6, 6), np.uint8), "test_labels": np.zeros(2, int)}, "test images"),
        ({"groups": np.zeros(3, int)}, "groups"),
        ({"groups": np.array([0, 1, np.nan, 0])}, "groups must be finite"),
        ({"groups": np.array([None, 1, 2, 3], dtype=object)}, "not numbers"),
        ({"images": np.array([[[object()]]] * 4)}, "not numbers"),
    ],
)
def test_an_npz_that_makes_no_sense_is_refused_with_its_name(tmp_path, change, message):
    with pytest.raises(InputError, match=r"x\.npz") as caught:
        read_npz(save(tmp_path / "x.npz", **(GOOD | change)))
    assert message in str(caught.value)


def test_an_npz_without_images_or_labels_is_refused(tmp_path):
    with pytest.raises(InputError, match="no array named 'labels'"):
        read_npz(save(tmp_path / "x.npz", images=GOOD["images"]))


def as_npy():
    out = io.BytesIO()
    np.save(out, GOOD["images"])
    return out.getvalue()


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and no more", as_npy()])
def test_a_file_that_is_no_zip_is_refused(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz: (not a \.npz file|damaged)"):
        read_npz(tmp_path / "x.npz")


def test_a_truncated_or_damaged_npz_is_refused(tmp_path):
    content = save(tmp_path / "x.npz", **GOOD).read_bytes()
    images_at = content.index(b"NUMPY") + 140
    for broken in (content[:-30], content[: len(content) // 2], content[:images_at] + b"?" + content[images_at + 1 :]):
        (tmp_path / "x.npz").write_bytes(broken)
        with pytest.raises(InputError, match=r"x\.npz"):
            read_npz(tmp_path / "x.npz")


def test_an_npz_bomb_is_refused_by_its_stated_size(tmp_path, monkeypatch):
    monkeypatch.setattr(_dataset_files, "MAX_BYTES", 10_000)
    np.savez_compressed(tmp_path / "x.npz", **(GOOD | {"images": np.zeros((4, 500, 500), np.uint8)}))
    with pytest.raises(InputError, match=r"1,000,032 bytes when unpacked are too many \(10,000 at most\)"):
        read_npz(tmp_path / "x.npz")


def test_an_array_that_announces_more_than_it_holds_is_refused(tmp_path):
    header = np.lib.format.header_data_from_array_1_0(GOOD["images"]) | {"shape": (2**40, 6, 5)}
    lying = io.BytesIO()
    np.lib.format.write_array_header_1_0(lying, header)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", lying.getvalue() + bytes(120))
        archive.writestr("labels.npy", as_npy())
    with pytest.raises(InputError, match=r"x\.npz: 'images': announces an array of"):
        read_npz(tmp_path / "x.npz")


def test_a_folder_or_a_pipe_is_no_data_set(tmp_path):
    (tmp_path / "x.npz").mkdir()
    os.mkfifo(tmp_path / "y.npz")
    for name in ("x.npz", "y.npz"):
        with pytest.raises(InputError, match="not a plain file"):
            read_npz(tmp_path / name)
