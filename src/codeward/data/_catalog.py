"""The data sets codeward knows by name: their files, checksums, homes and fixed normalisation constants."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes
    ----------
    name : str
        Path under the data set's folder, without ``.gz``.
    md5 : str or None
        Of the plain content; None where only the packed file has a published checksum.
    packed_md5 : str or None
        Of the ``.gz`` file as it is published.
    """

    name: str
    md5: str | None
    packed_md5: str | None = None


@dataclass(frozen=True)
class Download:
    """What `codeward data fetch` brings: a file under the home address, an archive when it ends in .tar.gz."""

    name: str
    md5: str


@dataclass(frozen=True)
class CatalogEntry:
    """A data set by name.

    ``mean`` and ``std`` are public constants. They are never computed from users' data: a statistic over all users
    would let one user touch every sub-model, and with that break the isolation every guarantee rests on.

    ``sizes`` are the numbers of training and test images: where a file has no published checksum (Fashion-MNIST's
    unpacked files), they and the label range are what tells a wrong file. ``folder`` is where the files are, by default
    the name.

    Examples
    --------
    >>> CATALOG["mnist"].shape, CATALOG["mnist"].sizes
    ((1, 28, 28), (60000, 10000))
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sizes: tuple[int, int]
    train: tuple[DataFile, ...] = ()
    test: tuple[DataFile, ...] = ()
    home: str = ""
    downloads: tuple[Download, ...] = ()
    folder: str = ""

    def __post_init__(self) -> None:
        if not self.folder:
            object.__setattr__(self, "folder", self.name)


_BATCHES = "cifar-10-batches-bin"

CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry("digits", "8x8 digits, ships with scikit-learn", (1, 8, 8), 10, (0.305,), (0.376,), (1258, 539)),
        CatalogEntry(
            "mnist",
            "28x28 handwritten digits, 60,000 + 10,000",
            (1, 28, 28),
            10,
            (0.1307,),
            (0.3081,),
            (60_000, 10_000),
            (
                DataFile("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
                DataFile("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
            ),
            (
                DataFile("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
                DataFile("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
            ),
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                Download("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                Download("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
                Download("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
                Download("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
            ),
        ),
        CatalogEntry(
            "fashion-mnist",
            "28x28 pieces of clothing, 60,000 + 10,000",
            (1, 28, 28),
            10,
            (0.2860,),
            (0.3530,),
            (60_000, 10_000),
            (
                DataFile("train-images-idx3-ubyte", None, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                DataFile("train-labels-idx1-ubyte", None, "25c81989df183df01b3e8a0aad5dffbe"),
            ),
            (
                DataFile("t10k-images-idx3-ubyte", None, "bef4ecab320f06d8554ea6380940ec79"),
                DataFile("t10k-labels-idx1-ubyte", None, "bb300cfdad3c16e7a12a480ee83cd310"),
            ),
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                Download("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                Download("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
                Download("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
                Download("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
            ),
        ),
        CatalogEntry(
            "cifar10",
            "32x32 colour photographs, 50,000 + 10,000",
            (3, 32, 32),
            10,
            (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616),
            (50_000, 10_000),
            tuple(
                DataFile(f"{_BATCHES}/data_batch_{number}.bin", md5)
                for number, md5 in enumerate(
                    (
                        "5dd7e06a14cb22eb9f671a540d1b7c25",
                        "5ea93a67294ea407fff1d09f752e9692",
                        "942cd6a4bcdd0dd3c604fbe906cb4421",
                        "ae636b3ba5c66a11e91e8cb52e771fcb",
                        "53f37980c15c3d472c316c40844f3f0d",
                    ),
                    start=1,
                )
            ),
            (DataFile(f"{_BATCHES}/test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),),
            "https://www.cs.toronto.edu/~kriz/",
            (Download("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        ),
    )
}

#: MNIST with its writers: the images are MNIST's, who wrote them comes with the package.
CATALOG["mnist-writers"] = replace(
    CATALOG["mnist"], name="mnist-writers", title="MNIST with its 539 writers as users", folder="mnist"
)

#: CIFAR-10 as published for Python: a pickle a batch, read only after its checksum matched.
CIFAR_PYTHON_MD5: dict[str, str] = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
