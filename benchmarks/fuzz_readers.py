"""Coverage-guided fuzzing of everything that reads a file from somebody else, with Atheris (libFuzzer).

    pip install atheris     # no dependency of the project
    python -m benchmarks.fuzz_readers [TARGET ...] [--seconds 60] [--record benchmarks/records/fuzz_readers.json]

Every target runs in a process of its own, from valid files. A finding is whatever is neither an answer nor one line of
`InputError`, takes more than 1 GiB, or more than 5 s; each place in the code is counted once, and its input printed.
Archives, checksums and digests are made to fit by the harness, so that what is inside them is fuzzed, not the checksum.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

#: Between the parts of an input that becomes several files or members of an archive.
CUT = b"\n\x00=CUT=\x00\n"
#: Modules whose branches guide the search.
GUIDES = ["codeward._files", "codeward.codes._code", "codeward.runs", "codeward.data", "codeward.reproduction"]
GUIDES += ["codeward.decoding._vote_files", "codeward.training._model_store", "codeward.serve._incidents"]
GUIDES += ["zipfile", "json", "gzip"]
#: Not these: numba compiles what it finds.
KERNELS = [f"codeward.decoding._{part}" for part in ("posterior_kernels", "pruned", "pruned_search")]
LONGEST_LINE = 2000


def split_archive(raw: bytes) -> bytes:
    """Return an archive as parts that `join_archive` puts together: name, line feed, content."""
    with zipfile.ZipFile(io.BytesIO(raw)) as whole:
        return CUT.join(name.encode() + b"\n" + whole.read(name) for name in whole.namelist())


def join_archive(parts: bytes) -> bytes:
    """Return an archive with checksums that fit."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for part in parts.split(CUT)[:20]:
            name, _, content = part.partition(b"\n")
            made.writestr(zipfile.ZipInfo(name.decode("latin-1")[:100] or "x"), content)
    return out.getvalue()


def make_targets(folder: Path) -> dict[str, tuple[list[bytes], Callable[[bytes], object]]]:
    """Return, by name, valid inputs and what reads one of them."""
    import numpy as np
    from safetensors.numpy import save as save_arrays

    from codeward import InputError
    from codeward.codes import Code
    from codeward.data import CATALOG, load_dataset
    from codeward.decoding import VoteReader, load_scores, load_votes, save_scores, save_votes
    from codeward.reproduction import PackedRun, PackedSetting, pack_setting
    from codeward.runs import (
        Cell,
        FederatedConfig,
        Revocation,
        RunConfig,
        RunFolder,
        load_config,
        load_record,
        load_revocation,
    )
    from codeward.serve import Examiner, Incident, Ledger, gather_evidence
    from codeward.training import ModelStore

    rng = np.random.default_rng(0)
    votes, labels = rng.integers(0, 3, (8, 3)), rng.integers(0, 3, 8)
    code = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]], users=["a", "b", "c"])

    def reading(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def call(data: bytes) -> object:
            (folder / name).write_bytes(data)
            return read(folder / name)

        return call

    def unpacked(call: Callable[[bytes], object]) -> Callable[[bytes], object]:
        return lambda data: call(join_archive(data))

    def written(name: str, write: Callable[[Path], object]) -> bytes:
        write(folder / name)
        return (folder / name).read_bytes()

    targets: dict[str, tuple[list[bytes], Callable[[bytes], object]]] = {}
    for end in ("csv", "npy", "json"):
        targets[f"code.{end}"] = ([written(f"code.{end}", code.save)], reading(f"code.{end}", Code.load))

    def both(file: Path) -> None:
        load_votes(file)
        list(VoteReader(file).chunks(3, with_scores=True))

    confusion, scores = rng.dirichlet(np.ones(3), (3, 3)), rng.random((8, 3, 3))
    full = written("v.npz", lambda file: save_votes(file, votes, labels, confusion, scores, code.digest))
    targets["votes.csv"] = ([written("v.csv", lambda file: save_votes(file, votes, labels))], reading("v.csv", both))
    targets["votes.npz"] = ([full], reading("v.npz", both))
    targets["votes.npz members"] = ([split_archive(full)], unpacked(reading("v.npz", both)))
    pth = written("s.pth", lambda file: save_scores(file, votes, labels, 3))
    targets["scores.pth"] = ([pth], reading("s.pth", load_scores))
    targets["scores.pth members"] = ([split_archive(pth)], unpacked(reading("s.pth", load_scores)))

    # A run folder of one cell.
    config = RunConfig(
        users=3, code={"file": "code.json"}, attack={"attackers": [1]}, decoder={"name": "bayes", "max_attackers": 1}
    )
    run = RunFolder(folder / "digits-iid" / "c")
    run.path.mkdir(parents=True)
    code.save(run.code_file)
    run.config_file.write_text("users: 3\ncode: {file: code.json}\nattack: {attackers: [1]}\n")
    about = {"classes": 3, "training": {}, "groups": [{"attackers": [1], "target": 2, "targets": [2, 2, 1]}]}
    about |= {"hardware": {}, "keys": ["0" * 64] * 3, "shape": [1, 8, 8], "class_names": ["x", "y", "z"]}
    kept = {name: load_votes(folder / "v.csv") for name in ("validation", "clean", "triggered")}
    cell = Cell(run, 0, 1).save_votes(kept, about, run.path / "store")
    cell.save_record(config, {"figures": {}, "code_digest": code.digest, "training": {}})

    def walk(place: RunFolder) -> None:
        whole = Cell(place, 0, 1)
        _ = (whole.about, whole.record, whole.is_whole, whole.has_keys)
        _ = (whole.id, whole.threat, whole.class_names, whole.assumptions, place.config)
        _ = (whole.keys, whole.store, whole.shape, whole.groups, whole.reached, whole.triggered, whole.gallery)
        whole.decoder("bayes")

    def cell_of(file: Path) -> Callable[[bytes], object]:
        return reading(str(file.relative_to(folder)), lambda _: walk(RunFolder(run.path)))

    for name, file in {"about": run.about(0, 1), "record": run.record(0, 1), "config.yaml": run.config_file}.items():
        targets[f"cell {name}"] = ([file.read_bytes()], cell_of(file))
    targets["record"] = ([run.record(0, 1).read_bytes()], reading("r.json", load_record))
    yaml = [config.to_yaml().encode(), b"users: 12\ncode: {name: c}\nattack:\n  attackers: [0, 1]\n  kind: blended\n"]
    yaml += [b"federated: {rounds: 2, local_epochs: 1, rule: median}\ntraining: {batch_size: 3}\n"]

    def configure(file: Path) -> None:
        with suppress(InputError):
            load_config(file).digest  # noqa: B018
        load_config(file, kind=FederatedConfig).digest  # noqa: B018

    targets["config"] = (yaml, reading("c.yaml", configure))
    revoked = RunFolder(folder / "revoked")
    state = Revocation(code).add(["b"])
    state.save(revoked.path)
    state.code.save(revoked.code_file)
    forget = reading("revoked/revocation.json", lambda _: load_revocation(revoked.path))
    targets["revocation"] = ([revoked.revocation_file.read_bytes()], forget)

    # Packed results: the lines of the index, then the columns.
    plain = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    packed, _ = pack_setting(folder, "digits-iid")
    first, _, columns = split_archive(packed.file.read_bytes()).partition(CUT)
    seed = first[first.index(b'{"format') :] + CUT + columns
    for file, content in plain.items():  # the cell is read as plain files too
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def unpack(data: bytes) -> None:
        lines, _, members = data.partition(CUT)
        index = io.BytesIO()
        np.save(index, np.frombuffer(lines, dtype=np.uint8))
        packed.file.write_bytes(join_archive(b"index.npy\n" + index.getvalue() + CUT + members))
        for name in (found := PackedSetting(packed.path)).runs[:3]:
            found.unpack_run(name, folder / "unpacked")
            walk(PackedRun(found, name))

    targets["packed"] = ([seed], unpack)

    # The model store, with size and digest filled in.
    store, key = ModelStore(folder / "store"), "0" * 64
    tensors = save_arrays({"scores": rng.random((2, 3)).astype(np.float32), "w": np.zeros(2, np.float16)})
    sidecar = b'{"file": "m.safetensors", "sha256": "DIGEST", "bytes": SIZE, "about": {"users": [0]}}'
    (folder / "store" / "00").mkdir(parents=True)

    def restore(data: bytes) -> None:
        text, _, content = data.partition(CUT)
        digest, size = hashlib.sha256(content).hexdigest().encode(), str(len(content)).encode()
        text = text.replace(b"DIGEST", digest).replace(b"SIZE", size)
        (folder / "store" / "00" / "m.safetensors").write_bytes(content)
        for name in (f"{key}.json", f"{key}.scores.x.json"):
            (folder / "store" / "00" / name).write_bytes(text)
        store.corrupted_.clear()
        store.load_weights(key)
        store.load_scores(key, "x")

    targets["store"] = ([sidecar + CUT + tensors], restore)

    # Data sets: an .npz, and a catalogued one whose files have no checksum.
    images = rng.integers(0, 255, (6, 8, 8), dtype=np.uint8)
    np.savez(folder / "d.npz", images=images, labels=labels[:6], groups=np.array(["u", "v"] * 3))
    named = (folder / "d.npz").read_bytes()
    whole = {"test_images": images[:2] / 255, "test_labels": labels[:2], "groups": np.arange(6)}
    np.savez(folder / "d.npz", images=images, labels=labels[:6], **whole)
    seeds = [named, (folder / "d.npz").read_bytes()]
    data_set = reading("d.npz", lambda file: load_dataset(str(file)))
    targets["data.npz"] = (seeds, data_set)
    targets["data.npz members"] = ([split_archive(seed) for seed in seeds], unpacked(data_set))
    files = [[replace(file, md5=None, packed_md5=None) for file in part] for part in
             (CATALOG["mnist"].train, CATALOG["mnist"].test)]  # fmt: skip
    CATALOG["mnist"] = replace(CATALOG["mnist"], train=tuple(files[0]), test=tuple(files[1]), sizes=(2, 2))
    (folder / "mnist").mkdir()
    idx = [b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(2 * 784)]
    idx += [b"\0\0\x08\x01" + (2).to_bytes(4, "big") + b"\3\7"]

    def idx_files(data: bytes) -> None:
        parts = (data.split(CUT) + [b""] * 4)[:4]
        for file, part in zip([*files[0], *files[1]], parts, strict=True):
            for name, content in ((f"{file.name}.gz", part), (file.name, part)):
                (folder / "mnist" / name).unlink(missing_ok=True)
                if name.endswith(".gz") == (part[:2] == b"\x1f\x8b"):
                    (folder / "mnist" / name).write_bytes(content)
        load_dataset("mnist", folder)

    targets["data idx"] = ([CUT.join(idx * 2), CUT.join(gzip.compress(part, mtime=0) for part in idx * 2)], idx_files)

    # A row of the ledger that somebody wrote, digest and all.
    import sqlite3

    incident = Incident((0, 2, 2), 0.9, 0, 2, (1,), (0.1, 0.8, 0.1), "a" * 64, code.digest, "run", key="k")
    with Ledger(folder / "ledger.sqlite") as ledger:
        ledger.record_all([replace(incident, key=None), incident])
    base = sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)
    base.execute("pragma synchronous=off")
    names = "id key microseconds run code_digest digest target label attack_probability threshold votes suspects "
    covered = (names + "user_probability").split()
    second = "from ledger_incidents where id=2"
    row = dict(zip(covered, base.execute(f"select {','.join(covered)} {second}").fetchone(), strict=True))
    ledger = Ledger(folder / "ledger.sqlite")
    examiner = Examiner(code, load_votes(folder / "v.csv"), 3)

    def read_row(data: bytes) -> None:
        try:
            given = {name: value for name, value in json.loads(data).items() if name in covered and name != "id"}
            base.execute(
                f"update ledger_incidents set {','.join(f'{n}=?' for n in given)} where id=2", list(given.values())
            )
        except (ValueError, AttributeError, RecursionError, sqlite3.Error, OverflowError):
            return  # nothing that a database would hold
        found = base.execute(f"select {','.join(covered)} {second}").fetchone()
        digest = hashlib.sha256(json.dumps(list(found), separators=(",", ":"), default=repr).encode()).hexdigest()
        base.execute("update ledger_incidents set row_digest=? where id=2", (digest,))
        ledger.verify()
        ledger.export(folder / "out.jsonl")
        ledger.export(folder / "out.csv")
        gather_evidence(ledger, examiner, "run")

    targets["ledger row"] = ([json.dumps(row).encode()], read_row)
    return targets


def fuzz(name: str, seconds: float) -> None:
    """Fuzz one target in this process until its time is up; the last line printed is what was found, as JSON."""
    import logging

    import atheris

    guides = [*GUIDES, "yaml"] if "config" in name else GUIDES
    with atheris.instrument_imports(include=guides, exclude=KERNELS):
        folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        seeds, call = make_targets(folder)[name]
    import numpy as np

    from codeward import InputError

    logging.disable()
    np.seterr(all="ignore")
    found: dict[str, dict[str, Any]] = {}
    runs, refused, begin = 0, 0, time.monotonic()

    def note(what: str, data: bytes) -> None:
        found.setdefault(what, {"finding": what, "input": repr(data[:3000])})

    def once(data: bytes) -> None:
        nonlocal runs, refused
        start, peak = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            call(data)
        except InputError as error:
            refused += 1
            if "\n" in str(error) or len(str(error)) > LONGEST_LINE:
                note(f"not a line: {str(error).removeprefix(str(folder))[:60]!r}", data)
        except Exception as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "/codeward/" in f.filename]
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "harness"
            note(f"{where} {type(error).__name__}", data)
        runs += 1
        if time.monotonic() - start > 5:
            note(f"{time.monotonic() - start:.0f} s", data)
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak > 1 << 20:
            note("more than 1 GiB", data)
        if time.monotonic() - begin > seconds:
            about = {"target": name, "executions": runs, "refused": refused, "minutes": round(seconds / 60, 2)}
            print(json.dumps(about | {"findings": list(found.values())}), flush=True)
            subprocess.run(["rm", "-rf", str(folder)], check=False)
            os._exit(0)

    for seed in seeds:
        call(seed)  # valid inputs are read
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    limits = ["-rss_limit_mb=6000", "-timeout=60", "-max_len=20000", "-verbosity=0", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], once)
    atheris.Fuzz()


def main() -> None:
    """Fuzz the targets one after another; print and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--here", action="store_true", help="fuzz the one target in this process")
    arguments = parser.parse_args()
    if arguments.here:
        fuzz(arguments.targets[0], arguments.seconds)  # does not return
    with tempfile.TemporaryDirectory() as folder:
        names = arguments.targets or list(make_targets(Path(folder)))
    lines = []
    for name in names:
        command = [sys.executable, "-m", "benchmarks.fuzz_readers", name, "--here", "--seconds", str(arguments.seconds)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        told = ended.stdout.strip().splitlines()[-1:]
        line = json.loads(told[0]) if ended.returncode == 0 and told else {"target": name, "died": ended.stderr[-3000:]}
        print(json.dumps(line, indent=1), flush=True)
        lines.append(line)
    if arguments.record:
        arguments.record.write_text(json.dumps({"targets": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
