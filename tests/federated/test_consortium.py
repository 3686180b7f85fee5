"""What `codeward federate init` writes: files, permissions, keys, certificates; and what it refuses to write."""

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from codeward._errors import InputError
from codeward.cli import main
from codeward.codes import Code
from codeward.federated import FederatedSettings, FederationPlan
from codeward.federated._federation_folder import FederationFolder
from codeward.federated.consortium import Consortium, Roster, write_consortium
from codeward.federated.consortium._roster import make_key, public_line, read_private_key, write_private
from codeward.training import PRESETS

NAMES = ("alice", "bob", "carol", "dave")
MATRIX = [[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 1]]
DAVES_KEY = make_key()


def make_plan(names: tuple[str, ...] | None = NAMES) -> FederationPlan:
    return FederationPlan(Code(MATRIX, users=names), PRESETS["digits"], FederatedSettings(), (1, 8, 8), seed=3)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    """Written under the most careless umask there is: permissions must not come from it. Dave made his own key."""
    umask = os.umask(0)
    try:
        place = tmp_path_factory.mktemp("made")
        keys = {"dave": public_line(DAVES_KEY.public_key())}
        yield write_consortium(place / "c", make_plan(), ["fl.example.org", "10.1.2.3"], public_keys=keys)
    finally:
        os.umask(umask)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def secrets(folder: Path) -> list[Path]:
    return [path for path in files(folder) if b"PRIVATE KEY" in path.read_bytes()]


def test_secrets_are_readable_by_their_owner_alone(consortium: Consortium) -> None:
    found = secrets(consortium.path)
    assert {str(path.relative_to(consortium.path)) for path in found} == {
        "authority/ca.key",
        "server/server.key",
        "users/alice/node.key",
        "users/bob/node.key",
        "users/carol/node.key",
    }
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_secret_lies_in_two_places(consortium: Consortium) -> None:
    contents = [path.read_bytes() for path in files(consortium.path)]
    for path in secrets(consortium.path):
        secret = b"".join(path.read_bytes().splitlines()[1:-1])
        assert sum(secret in b"".join(content.splitlines()) for content in contents) == 1


def test_a_user_gets_its_own_key_and_the_authority_and_nothing_of_the_others(consortium: Consortium) -> None:
    for name in NAMES:
        folder = consortium.path / "users" / name
        own = {"README.md", "ca.crt", "environment.sh", "node.pub"} | ({"node.key"} if name != "dave" else set())
        assert {str(path.relative_to(folder)) for path in files(folder)} == own
        text = b"".join(path.read_bytes() for path in files(folder)).decode()
        for other in consortium.roster.members:
            assert (other.public_key in text) == (other.name == name)


def test_the_keys_are_those_of_the_roster_and_the_columns_those_of_the_code(consortium: Consortium) -> None:
    roster = Roster.load(consortium.path / "server" / "users.json")
    assert roster == consortium.roster
    assert [(member.user, member.name) for member in roster.members] == list(enumerate(NAMES))
    plan = FederationFolder(consortium.path / "server" / "federation").load_plan()
    assert plan == make_plan()
    assert (roster.n_users, roster.code_digest) == (plan.code.n_users, plan.code.digest)
    for name in NAMES[:3]:
        key = read_private_key(consortium.path / "users" / name / "node.key")
        assert roster.find(public_line(key.public_key())) == roster.member(name)
    assert roster.find(public_line(DAVES_KEY.public_key())) == roster.member("dave")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="compares with OpenSSH")
def test_fingerprints_are_those_openssh_prints(consortium: Consortium) -> None:
    for member in consortium.roster.members:
        file = consortium.path / "users" / member.name / "node.pub"
        shown = subprocess.run(["ssh-keygen", "-lf", file], capture_output=True, text=True, check=True).stdout
        assert shown.split()[1] == member.fingerprint


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_flower_takes_the_keys_and_the_app(consortium: Consortium) -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.supernode.register import try_load_public_key

    for member in consortium.roster.members:
        registered = try_load_public_key(consortium.path / "server" / "keys" / f"{member.name}.pub")
        assert consortium.roster.find(registered) == member
    key = load_ssh_private_key((consortium.path / "users" / "alice" / "node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    # The bundle goes to every user: it must hold nothing but the names of the parts.
    bundle = build_fab_from_disk(consortium.path / "server" / "app")
    assert b"PRIVATE KEY" not in bundle
    assert len(bundle) < 4096


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """Open a TLS connection over loopback and return the word the server sends; raises what the client's side does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with plain:
                try:
                    with server.wrap_socket(plain, server_side=True) as secure:
                        secure.sendall(b"hello")
                except OSError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as plain,
                client.wrap_socket(plain, server_hostname=name) as secure,
            ):
                return secure.recv(16).decode()
        finally:
            thread.join()


def contexts(consortium: Consortium, authority: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(consortium.path / "server" / "server.crt", consortium.path / "server" / "server.key")
    client = ssl.create_default_context(cafile=str(authority))
    # What Python 3.13 turns on by default: certificates must be well formed to the letter.
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    return server, client


@pytest.mark.parametrize("name", ["fl.example.org", "10.1.2.3", "127.0.0.1", "localhost"])
def test_a_user_trusts_the_server_under_each_of_its_names(consortium: Consortium, name: str) -> None:
    server, client = contexts(consortium, consortium.path / "users" / "alice" / "ca.crt")
    assert shake_hands(server, client, name) == "hello"


def test_a_server_of_another_name_or_another_authority_is_not_trusted(consortium: Consortium, tmp_path: Path) -> None:
    server, client = contexts(consortium, consortium.path / "users" / "alice" / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shake_hands(server, client, "other.example.org")
    other = write_consortium(tmp_path / "other", make_plan(), ["fl.example.org"])
    server, client = contexts(consortium, other.path / "users" / "alice" / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client, "fl.example.org")


def test_no_file_holds_a_path_of_this_machine(consortium: Consortium) -> None:
    for path in files(consortium.path):
        assert str(consortium.path).encode() not in path.read_bytes()


def test_the_environment_switches_flower_s_calls_home_off_and_wants_its_own_folder(consortium: Consortium) -> None:
    for folder in (consortium.path / "server", consortium.path / "users" / "alice"):
        shown = subprocess.run(
            ["sh", "-c", ". ./environment.sh && env"], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert "FLWR_TELEMETRY_ENABLED=0" in shown
        assert "FLWR_DISABLE_UPDATE_CHECK=1" in shown
        assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in shown
        assert f"FLWR_HOME={folder}/flower" in shown
        shutil.rmtree(folder / "flower")
        elsewhere = subprocess.run(["sh", "-c", f". {folder}/environment.sh"], cwd="/", capture_output=True, text=True)
        assert "first: cd" in elsewhere.stderr


def test_nothing_is_written_over(consortium: Consortium, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in files(consortium.path)}
    with pytest.raises(InputError, match="exists"):
        write_consortium(consortium.path, make_plan(), ["fl.example.org"])
    assert {path: path.read_bytes() for path in files(consortium.path)} == before
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists"):
        write_consortium(tmp_path / "dangling", make_plan(), ["fl.example.org"])
    target = tmp_path / "secret"
    write_private(target, b"first")
    with pytest.raises(FileExistsError):
        write_private(target, b"second")
    assert target.read_bytes() == b"first"


@pytest.mark.parametrize(
    "name", ["", "..", ".", "a/b", "a b", "-rf", "a.b", "a\nb", "é", "x" * 64, "con\0", "$(id)", "a;b", "`id`"]
)
def test_names_that_cannot_be_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="user name"):
        write_consortium(tmp_path / "c", make_plan(("alice", "bob", "carol", name)), ["fl.example.org"])
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_one_folder_on_some_systems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="case alone"):
        write_consortium(tmp_path / "c", make_plan(("alice", "bob", "carol", "Bob")), ["fl.example.org"])
    with pytest.raises(InputError, match="names no users"):
        write_consortium(tmp_path / "c", make_plan(None), ["fl.example.org"])


@pytest.mark.parametrize(
    "host", ["", "https://a", "a:1", "a_b", "-a", "a..b", "1.2.3", "256.1.1.1", "*", "a b", "x" * 64]
)
def test_hosts_that_are_no_names_are_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="host"):
        write_consortium(tmp_path / "c", make_plan(), [host])
    assert list(tmp_path.iterdir()) == []


def test_keys_ports_and_days_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    wrong = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    same = public_line(DAVES_KEY.public_key())
    for problem, words in (
        ({"public_keys": {"alice": "ssh-rsa nonsense"}}, "not a public key"),
        ({"public_keys": {"alice": wrong.decode()}}, "elliptic-curve"),
        ({"public_keys": {"mallory": same}}, "no user"),
        ({"public_keys": {"alice": same, "bob": same}}, "given to two users"),
        ({"port": 0}, "port 0"),
        ({"port": 9093}, "different ports"),
        ({"days": 0}, "days"),
    ):
        with pytest.raises(InputError, match=words):
            write_consortium(tmp_path / "c", make_plan(), ["fl.example.org"], **problem)  # type: ignore[arg-type]
        # Not even a draft is left behind, though some of these fail after the first keys are written.
        assert list(tmp_path.iterdir()) == []


def test_a_private_key_that_others_may_read_is_refused(consortium: Consortium, tmp_path: Path) -> None:
    copy = tmp_path / "node.key"
    copy.write_bytes((consortium.path / "users" / "alice" / "node.key").read_bytes())
    copy.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        read_private_key(copy)
    copy.chmod(0o600)
    read_private_key(copy)
    copy.write_text("nonsense")
    with pytest.raises(InputError, match="not an OpenSSH private key"):
        read_private_key(copy)


def test_a_roster_that_was_edited_into_nonsense_is_refused(consortium: Consortium, tmp_path: Path) -> None:
    good = json.loads((consortium.path / "server" / "users.json").read_text())
    file = tmp_path / "users.json"

    def edit(words: str, **change: object) -> None:
        users = [dict(entry) for entry in good["users"]]
        users[1] |= change
        file.write_text(json.dumps(good | {"users": users}))
        with pytest.raises(InputError, match=words):
            Roster.load(file)

    edit("has fingerprint", public_key=public_line(make_key().public_key()))
    edit("has fingerprint", fingerprint=good["users"][0]["fingerprint"])
    edit("given to two users", user=0)
    edit("not one of 0..3", user=4)
    edit("given to two users", name="ALICE")
    edit("its column", user=True)
    edit("as text", name=7)
    first = good["users"][0]
    edit("given to two users", fingerprint=first["fingerprint"], public_key=first["public_key"])
    for content, words in (
        ("{", "not JSON"),
        ("[]", "not a codeward-users-1"),
        ('{"format": "codeward-users-1"}', "needs"),
    ):
        file.write_text(content)
        with pytest.raises(InputError, match=words):
            Roster.load(file)
    with pytest.raises(InputError, match="cannot be read"):
        Roster.load(tmp_path / "absent.json")


def test_a_replaced_key_speaks_for_its_column_and_the_old_one_for_nobody(consortium: Consortium) -> None:
    old, new = consortium.roster.member("bob"), public_line(make_key().public_key())
    changed = consortium.roster.replace_key("bob", new)
    assert changed.find(new) == changed.by_user[1]
    assert changed.find(old.public_key) is None
    without = consortium.roster.remove("bob")
    assert [member.user for member in without.members] == [0, 2, 3]
    assert without.find(old.public_key) is None
    with pytest.raises(InputError, match="given to two users"):
        consortium.roster.replace_key("bob", consortium.roster.member("alice").public_key)
    with pytest.raises(InputError, match="no user 'eve'"):
        consortium.roster.remove("eve")


def test_the_users_command_lists_replaces_and_removes(
    consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, key = tmp_path / "server", make_key()
    shutil.copytree(consortium.path / "server", server)
    (tmp_path / "new.pub").write_text(public_line(key.public_key()) + " bob's laptop")
    assert main(["federate", "users", str(server), "--replace", f"bob={tmp_path / 'new.pub'}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [user["name"] for user in shown["users"]] == list(NAMES)
    assert "flwr supernode register keys/bob.pub consortium --name bob" in shown["next"]
    assert Roster.load(server / "users.json").find(public_line(key.public_key())) is not None
    assert public_line(key.public_key()) in (server / "keys" / "bob.pub").read_text()

    assert main(["federate", "users", str(server), "--remove", "alice"]) == 0
    assert "alice" not in capsys.readouterr().out
    assert {path.stem for path in (server / "keys").iterdir()} == {"bob", "carol", "dave"}
    before = (server / "users.json").read_bytes()
    for arguments, words in (
        (["--remove", "alice"], "no user"),
        (["--replace", "carol"], "NAME=FILE"),
        (["--replace", f"carol={tmp_path / 'new.pub'}"], "given to two users"),
        (["--replace", "carol=x", "--remove", "dave"], "one at a time"),
    ):
        assert main(["federate", "users", str(server), *arguments]) == 2
        assert words in capsys.readouterr().err
    assert (server / "users.json").read_bytes() == before


def test_the_command_writes_designs_and_prints_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--host", "fl.example.org", "--recipe", "digits", "--json"]
    design = ["--users", "ann,ben,cid,dot,eve", "--attackers", "1", "--row-weight", "2"]
    assert main(["federate", "init", str(tmp_path / "a"), *design, *common]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [user["name"] for user in shown["users"]] == ["ann", "ben", "cid", "dot", "eve"]
    assert shown["address"] == "fl.example.org:9092"
    assert shown["guarantee"].endswith("if at most 1 other sub-model errs.")
    assert shown["commands"]["supernode"] in (tmp_path / "a" / "users" / "ann" / "README.md").read_text()
    assert shown["commands"]["superlink"] in (tmp_path / "a" / "server" / "README.md").read_text()
    assert "PRIVATE" not in json.dumps(shown)

    (tmp_path / "code.csv").write_text("1,1,0\n0,1,1\n1,0,1\n")
    (tmp_path / "dave.pub").write_text(public_line(DAVES_KEY.public_key()))
    code = ["--code", str(tmp_path / "code.csv")]
    key = ["--public-key", f"user2={tmp_path / 'dave.pub'}"]
    assert main(["federate", "init", str(tmp_path / "b"), *code, "--users", "3", *key, *common]) == 0
    assert [user["name"] for user in json.loads(capsys.readouterr().out)["users"]] == ["user0", "user1", "user2"]
    assert not (tmp_path / "b" / "users" / "user2" / "node.key").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--users", "3"], "--attackers K"),
        (["--code", "CODE", "--attackers", "1"], "not both"),
        (["--attackers", "1"], "--users is needed"),
        (["--code", "CODE", "--users", "4"], "4 users for a code of 3 columns"),
        (["--code", "CODE", "--users", "a,b"], "2 users for a code of 3 columns"),
        (["--code", "CODE", "--users", "a,,b"], "user name ''"),
        (["--code", "CODE", "--recipe", "imagenet"], "--recipe"),
        (["--code", "CODE", "--shape", "8,8"], "--shape"),
        (["--code", "CODE", "--rounds", "0"], "rounds"),
        (["--code", "CODE", "--public-key", "user0"], "NAME=FILE"),
        (["--code", "CODE", "--public-key", "user0=/absent.pub"], "cannot be read"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code = tmp_path / "code.csv"
    code.write_text("1,1,0\n0,1,1\n1,0,1\n")
    resolved = [str(code) if argument == "CODE" else argument for argument in arguments]
    target = tmp_path / "c"
    assert main(["federate", "init", str(target), *resolved, "--host", "fl.example.org"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["code.csv"]
