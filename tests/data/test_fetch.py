import gzip
import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

pytest.importorskip("pooch")

from codeward._errors import InputError
from codeward.data import CATALOG, check_dataset, fetch_dataset, load_dataset
from codeward.data._dataset_files import CatalogEntry, DataFile, Download


class Mirror:
    """A real HTTP server on the loopback address that counts what it is asked for."""

    def __init__(self):
        self.files, self.asked = {}, []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.lstrip("/")
                mirror.asked.append(name)
                content = mirror.files.get(name)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("CODEWARD_MIRROR", raising=False)
    server = Mirror()
    yield server
    server.close()


def md5(content):
    return hashlib.md5(content).hexdigest()


def idx(array):
    shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes()


@pytest.fixture
def clothes(mirror, monkeypatch):
    """A data set in MNIST's format, 30 + 10 images, on the server and in the catalogue."""
    rng = np.random.default_rng(0)
    contents = {
        "train-images": idx(rng.integers(0, 256, (30, 6, 6))),
        "train-labels": idx(np.arange(30) % 10),
        "test-images": idx(rng.integers(0, 256, (10, 6, 6))),
        "test-labels": idx(np.arange(10)),
    }
    mirror.files = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()}
    files = [DataFile(name, md5(content)) for name, content in contents.items()]
    downloads = tuple(Download(name, md5(content)) for name, content in mirror.files.items())
    sizes = (30, 10)
    entry = CatalogEntry(
        "clothes", "", (1, 6, 6), 10, (0.5,), (0.5,), sizes, (*files[:2],), (*files[2:],), mirror.url, downloads
    )
    monkeypatch.setitem(CATALOG, "clothes", entry)
    return contents


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("progress", [False, True])
def test_a_fetched_set_is_verified_and_loads(tmp_path, mirror, clothes, progress):
    assert check_dataset("clothes", tmp_path) == "missing"
    folder = fetch_dataset("clothes", tmp_path, progress=progress)
    assert folder == tmp_path / "clothes"
    assert files_in(folder) == sorted(mirror.files)
    assert check_dataset("clothes", tmp_path) == "ok"
    assert len(load_dataset("clothes", tmp_path).train) == 30


def test_what_is_there_is_not_fetched_again_and_a_stopped_fetch_goes_on(tmp_path, mirror, clothes):
    missing = mirror.files.pop("test-images.gz")
    with pytest.raises(InputError, match=r"test-images\.gz.*404"):
        fetch_dataset("clothes", tmp_path)
    assert files_in(tmp_path / "clothes") == ["train-images.gz", "train-labels.gz"]
    assert "test-images" in check_dataset("clothes", tmp_path)
    mirror.files["test-images.gz"] = missing
    mirror.asked.clear()
    (tmp_path / "clothes" / "train-labels.gz").unlink()
    (tmp_path / "clothes" / "train-labels").write_bytes(clothes["train-labels"])  # unpacked by hand: as good
    fetch_dataset("clothes", tmp_path)
    assert mirror.asked == ["test-images.gz", "test-labels.gz"]
    fetch_dataset("clothes", tmp_path)
    assert len(mirror.asked) == 2


def test_a_corrupted_download_is_refused_and_leaves_nothing_behind(tmp_path, mirror, clothes):
    content = bytearray(mirror.files["train-images.gz"])
    content[len(content) // 2] ^= 1
    mirror.files["train-images.gz"] = bytes(content)
    with pytest.raises(InputError, match=r"train-images\.gz: the download does not have the published md5"):
        fetch_dataset("clothes", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_mirror_comes_from_the_argument_else_from_the_variable(tmp_path, mirror, clothes, monkeypatch):
    monkeypatch.setenv("CODEWARD_MIRROR", mirror.url + "deep")
    with pytest.raises(InputError, match="deep/train-images"):
        fetch_dataset("clothes", tmp_path)
    fetch_dataset("clothes", tmp_path, base_url=mirror.url.rstrip("/"))
    assert mirror.asked[0] == "deep/train-images.gz"
    assert mirror.asked[1] == "train-images.gz"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "ftpp://127.0.0.1/x"])
def test_a_server_that_cannot_be_reached_is_named_with_the_way_out(tmp_path, mirror, clothes, url):
    with pytest.raises(InputError, match=r"could not be downloaded.*--url or CODEWARD_MIRROR"):
        fetch_dataset("clothes", tmp_path, base_url=url)
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_on_disk_is_reported_before_anything_is_fetched_and_never_removed(tmp_path, mirror, clothes):
    (tmp_path / "clothes").mkdir()
    (tmp_path / "clothes" / "test-labels").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"test-labels: damaged.*remove it and fetch again"):
        fetch_dataset("clothes", tmp_path)
    assert mirror.asked == []
    assert (tmp_path / "clothes" / "test-labels").read_bytes() == b"mine"


def pack(contents):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def photos(mirror, monkeypatch):
    """A data set in one archive, as CIFAR-10 comes, with more in it than is wanted."""
    contents = {f"bin/{name}": idx(array) for name, array in (
        ("a", np.zeros((30, 6, 6))), ("b", np.arange(30) % 10), ("c", np.zeros((10, 6, 6))), ("d", np.arange(10))
    )}  # fmt: skip
    mirror.files = {"photos.tar.gz": pack(contents | {"../escaped": b"x", "bin/readme": b"x"})}
    files = [DataFile(name, md5(content)) for name, content in contents.items()]
    downloads = (Download("photos.tar.gz", md5(mirror.files["photos.tar.gz"])),)
    sizes = (30, 10)
    entry = CatalogEntry(
        "photos", "", (1, 6, 6), 10, (0.5,), (0.5,), sizes, (*files[:2],), (*files[2:],), mirror.url, downloads
    )
    monkeypatch.setitem(CATALOG, "photos", entry)
    return contents


def test_an_archive_gives_the_wanted_files_and_nothing_else_and_keeps_what_lies_there(tmp_path, mirror, photos):
    (tmp_path / "photos" / "bin").mkdir(parents=True)
    (tmp_path / "photos" / "bin" / "notes").write_text("mine")
    (tmp_path / "photos" / "bin" / "b").write_bytes(photos["bin/b"])
    fetch_dataset("photos", tmp_path)
    assert files_in(tmp_path) == sorted(f"photos/{name}" for name in [*photos, "bin/notes"])
    fetch_dataset("photos", tmp_path)
    assert mirror.asked == ["photos.tar.gz"]


def test_an_archive_without_a_wanted_file_is_refused(tmp_path, mirror, photos, monkeypatch):
    mirror.files["photos.tar.gz"] = pack({"other": b"x"})
    entry = CATALOG["photos"]
    changed = Download("photos.tar.gz", md5(mirror.files["photos.tar.gz"]))
    fields = (entry.name, "", entry.shape, 10, entry.mean, entry.std, entry.sizes, entry.train, entry.test, entry.home)
    monkeypatch.setitem(CATALOG, "photos", CatalogEntry(*fields, (changed,)))
    with pytest.raises(InputError, match="not the expected archive"):
        fetch_dataset("photos", tmp_path)
    assert not list(tmp_path.iterdir())


def test_digits_need_no_fetching_and_an_unknown_name_is_refused(tmp_path):
    fetch_dataset("digits", tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="no data set is named 'x'"):
        fetch_dataset("x", tmp_path)
