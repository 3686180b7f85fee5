"""What the named data sets consist of: files, checksums, shapes, homes and normalisation constants, as plain data.

The checksums are those their publishers give. MD5 tells a damaged or mixed-up file from the right one and still has
no known second preimage; it is not a defence against whoever *made* the official file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Format = Literal["idx", "cifar-binary", "cifar-python"]


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes
    ----------
    name : str
        File name.
    shape : tuple of int
        Shape of its content: what an idx header must say, or (images, bytes per record) of a CIFAR batch.
    md5 : str or None
        Official MD5 of the file as it lies on disk, where one is published.
    content_md5 : str or None
        MD5 after decompression, where one is published: a copy compressed anew is the same data.
    """

    name: str
    shape: tuple[int, ...]
    md5: str | None = None
    content_md5: str | None = None


@dataclass(frozen=True)
class Layout:
    """One complete way a data set may lie on disk.

    Attributes
    ----------
    format : str
        ``idx`` (files: train images, train labels, test images, test labels), ``cifar-binary`` or ``cifar-python``
        (files: the training batches in order, the test batch last).
    folder : str
        Folder below that of the data set; empty for the folder itself.
    files : tuple of DataFile
    """

    format: Format
    folder: str
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class DatasetRecord:
    """A named data set.

    Attributes
    ----------
    name : str
    image_shape : tuple of int
        (C, H, W).
    n_classes : int
    mean, std : tuple of float
        Normalisation per channel on the 0..1 scale, public constants (see `codeward.data.DatasetPair`).
    layouts : tuple of Layout
        Accepted layouts, preferred first.
    home : str
        Where the publisher keeps it.
    downloads : tuple of (str, str)
        Remote file name and MD5 of what `codeward.data.fetch_dataset` downloads.
    fetched : int
        Index of the layout a download yields: its files themselves, or members of the one archive.
    """

    name: str
    image_shape: tuple[int, int, int]
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layouts: tuple[Layout, ...]
    home: str
    downloads: tuple[tuple[str, str], ...]
    fetched: int


_IDX_SHAPES = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}
_MNIST_PLAIN = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_MNIST_GZ = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
_FASHION_GZ = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
_CIFAR_BINARY = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_CIFAR_PYTHON = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def _idx_layouts(plain: Mapping[str, str], compressed: Mapping[str, str]) -> tuple[Layout, Layout]:
    return (
        Layout("idx", "", tuple(DataFile(name, shape, plain.get(name)) for name, shape in _IDX_SHAPES.items())),
        Layout(
            "idx",
            "",
            tuple(
                DataFile(name + ".gz", shape, compressed[name], plain.get(name)) for name, shape in _IDX_SHAPES.items()
            ),
        ),
    )


#: Every named data set that lies on disk; ``digits`` ships with scikit-learn and needs no files.
REGISTRY: Mapping[str, DatasetRecord] = {
    "mnist": DatasetRecord(
        name="mnist",
        image_shape=(1, 28, 28),
        n_classes=10,
        mean=(0.1307,),
        std=(0.3081,),
        layouts=_idx_layouts(_MNIST_PLAIN, _MNIST_GZ),
        home="https://ossci-datasets.s3.amazonaws.com/mnist",
        downloads=tuple((name + ".gz", md5) for name, md5 in _MNIST_GZ.items()),
        fetched=1,
    ),
    "fashion-mnist": DatasetRecord(
        name="fashion-mnist",
        image_shape=(1, 28, 28),
        n_classes=10,
        mean=(0.2860,),
        std=(0.3530,),
        # No MD5 of the plain files is published: those are checked by header, size and label range alone.
        layouts=_idx_layouts({}, _FASHION_GZ),
        home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        downloads=tuple((name + ".gz", md5) for name, md5 in _FASHION_GZ.items()),
        fetched=1,
    ),
    "cifar10": DatasetRecord(
        name="cifar10",
        image_shape=(3, 32, 32),
        n_classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        layouts=(
            Layout(
                "cifar-binary",
                "cifar-10-batches-bin",
                tuple(DataFile(name, (10_000, 3073), md5) for name, md5 in _CIFAR_BINARY.items()),
            ),
            Layout(
                "cifar-python",
                "cifar-10-batches-py",
                tuple(DataFile(name, (10_000, 3072), md5) for name, md5 in _CIFAR_PYTHON.items()),
            ),
        ),
        home="https://www.cs.toronto.edu/~kriz",
        downloads=(("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        fetched=0,
    ),
}
