import os
import sys
from pathlib import Path

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.data import CATALOG, check_dataset, find_data_dir, load_dataset
from codeward.data._dataset_files import CatalogEntry, DataFile
from codeward.data._datasets import load_files

needs_data = pytest.mark.skipif(not os.environ.get("CODEWARD_DATA"), reason="CODEWARD_DATA is not set")


def test_the_data_directory_is_the_argument_else_the_variable_else_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODEWARD_DATA", str(tmp_path / "variable"))
    assert find_data_dir(tmp_path / "argument") == tmp_path / "argument"
    assert find_data_dir() == tmp_path / "variable"
    monkeypatch.setenv("CODEWARD_DATA", "")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert find_data_dir() == tmp_path / "cache" / "codeward" / "data"


def test_digits_are_there_without_any_file_and_always_cut_the_same_way(tmp_path):
    pair, again = load_dataset("digits", tmp_path), load_dataset("digits")
    assert (len(pair.train), len(pair.test)) == CATALOG["digits"].sizes
    assert pair.train.images.shape[1:] == CATALOG["digits"].shape
    assert pair.train.digest() == again.train.digest()
    assert pair.test.digest() == again.test.digest()
    assert pair.train.images.max() == 255
    assert set(np.unique(pair.test.labels)) == set(range(10))
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"no data set is named 'mnits'.*mnist.*\.npz"):
        load_dataset("mnits")
    with pytest.raises(InputError, match="mnits"):
        check_dataset("mnits")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_a_missing_set_gets_an_error_that_says_which_files_go_where(tmp_path, name):
    with pytest.raises(InputError) as caught:
        load_dataset(name, tmp_path)
    message = str(caught.value)
    assert str(tmp_path / name) in message
    assert f"codeward data fetch {name}" in message
    for file in CATALOG[name].train + CATALOG[name].test:
        assert file.name in message
    assert check_dataset(name, tmp_path) == "missing"


def idx(array):
    shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes()


def write_fashion(folder: Path, n_train=60, n_test=10, top=9):
    """Unpacked Fashion-MNIST has no published checksum: header, size and labels are all there is to check."""
    folder.mkdir(parents=True)
    for part, n in (("train", n_train), ("t10k", n_test)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(np.zeros((n, 28, 28))))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.full(n, top)))


def small_fashion():
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    files = [DataFile(name, None) for name in names]
    return CatalogEntry("small", "", (1, 28, 28), 10, (0.5,), (0.5,), (60, 10), tuple(files[:2]), tuple(files[2:]))


def test_files_without_checksum_must_have_the_published_sizes_and_labels(tmp_path):
    write_fashion(tmp_path / "good")
    train, test = load_files(small_fashion(), tmp_path / "good")
    assert (len(train), len(test)) == (60, 10)
    write_fashion(tmp_path / "swapped", n_train=10, n_test=60)
    with pytest.raises(InputError, match="10 training images, small has 60; files swapped"):
        load_files(small_fashion(), tmp_path / "swapped")
    write_fashion(tmp_path / "labels", top=10)
    with pytest.raises(InputError, match=r"label 10, not 0\.\.9"):
        load_files(small_fashion(), tmp_path / "labels")


def test_python_batches_of_cifar_are_not_opened_when_they_are_not_the_official_ones(tmp_path):
    batches = tmp_path / "cifar10" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    (batches / "data_batch_1").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(InputError, match=r"data_batch_1.*not the official.*not opened"):
        load_dataset("cifar10", tmp_path)
    assert "not opened" in check_dataset("cifar10", tmp_path)


def test_an_npz_without_test_set_is_cut_and_keeps_its_groups_in_step(tmp_path):
    labels = np.arange(40) % 4
    images = np.zeros((40, 4, 4), np.uint8)
    images[:, 0, 0] = np.arange(40)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, groups=np.array([f"user{i % 5}" for i in range(40)]))
    pair = load_dataset(str(tmp_path / "mine.npz"))
    marks = pair.train.images[:, 0, 0, 0]
    assert len(pair.train) + len(pair.test) == 40
    assert len(pair.test) == 12
    assert not set(marks) & set(pair.test.images[:, 0, 0, 0])
    assert pair.n_classes == 4
    assert list(pair.groups) == [f"user{mark % 5}" for mark in marks]
    with pytest.raises(InputError, match="no such file"):
        load_dataset(str(tmp_path / "other.npz"))


@needs_data
@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_real_sets_load_with_their_published_sizes(name):
    pair = load_dataset(name)
    entry = CATALOG[name]
    assert (len(pair.train), len(pair.test)) == entry.sizes
    assert pair.train.images.shape[1:] == entry.shape
    assert np.bincount(pair.test.labels).size == 10
    assert check_dataset(name) == "ok"
    scaled = pair.train.images[::7].astype(np.float32) / 255
    assert scaled.mean(axis=(0, 2, 3)) == pytest.approx(entry.mean, abs=0.01)
    assert scaled.std(axis=(0, 2, 3)) == pytest.approx(entry.std, abs=0.01)


@needs_data
@pytest.mark.data
def test_one_changed_byte_in_a_real_file_is_found(tmp_path):
    (tmp_path / "mnist").mkdir()
    for file in CATALOG["mnist"].train + CATALOG["mnist"].test:
        (tmp_path / "mnist" / file.name).write_bytes((find_data_dir() / "mnist" / file.name).read_bytes())
    assert check_dataset("mnist", tmp_path) == "ok"
    broken = tmp_path / "mnist" / "t10k-labels-idx1-ubyte"
    content = bytearray(broken.read_bytes())
    content[-1] ^= 1
    broken.write_bytes(content)
    assert "t10k-labels-idx1-ubyte: damaged" in check_dataset("mnist", tmp_path)
    broken.unlink()
    assert "missing t10k-labels-idx1-ubyte" in check_dataset("mnist", tmp_path)


def test_a_user_cannot_invent_a_class_that_the_servers_test_set_does_not_know(tmp_path):
    images = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=[0, 1, 2, 0], test_images=images, test_labels=[0, 1, 1, 0])
    with pytest.raises(InputError, match=r"training label 2, but test_labels know 0\.\.1 only"):
        load_dataset(str(tmp_path / "a.npz"))
