import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from codeward._errors import InputError
from codeward.attacks import FRACTION
from codeward.codes import Code
from codeward.runs import FRACTIONS, Revocation, RunConfig, RunFolder, load_config, load_revocation

#: Those of federated runs are another kind, tested with them.
CONFIGS = sorted(
    file
    for file in (Path(__file__).parents[2] / "configs").glob("*.yaml")
    if not file.name.startswith(("federated-", "compare-"))  # these have tests of their own
)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_configuration_that_ships_is_valid_and_says_what_its_name_says(file):
    config = load_config(file)
    dataset, _, code = file.stem.partition("-")
    assert config.dataset == dataset
    assert config.code.name == (code or "btc2412")
    assert config.attack.attackers == (0, 1, 2, 3)


def test_there_are_configurations_for_the_papers_settings():
    assert {file.stem for file in CONFIGS} >= {
        "digits", "mnist-c", "mnist-d", "mnist-g", "mnist-h", "cifar10-c", "cifar10-d", "cifar10-g", "cifar10-h"
    }  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["dataset=mnist", "split.kind=dirichlet", "split.alpha=0.1", "attack.attackers=[0,2]"],
        ["code.name=c", "training.learning_rate=1e-4", "store=somewhere", "data_dir=elsewhere"],
    ],
)
def test_a_configuration_written_as_yaml_reads_back_the_same(tmp_path, overrides):
    config = load_config(None, overrides)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    again = load_config(tmp_path / "config.yaml")
    assert again == config
    assert again.digest == config.digest


def test_the_digest_is_the_same_in_another_process_and_for_another_order_of_keys(tmp_path):
    (tmp_path / "a.yaml").write_text("seed: 3\nattack: {kind: blended, groups: 2}\n")
    (tmp_path / "b.yaml").write_text("attack:\n  groups: 2\n  kind: blended\nseed: 3\ndata_dir: elsewhere\nstore: s\n")
    first, second = (load_config(tmp_path / name) for name in ("a.yaml", "b.yaml"))
    assert first.digest == second.digest
    code = "import sys; from codeward.runs import load_config; print(load_config(sys.argv[1]).digest)"
    run = [sys.executable, "-c", code, str(tmp_path / "a.yaml")]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == first.digest


@pytest.mark.parametrize(
    "override",
    ["seed=1", "users=11", "attack.kind=split", "training.epochs=3", "decoder.max_attackers=2", "code.name=c"],
)
def test_the_digest_changes_with_whatever_decides_the_figures(override):
    assert load_config(None, [override]).digest != load_config().digest


@pytest.mark.parametrize("override", ["repeats=7", "attack.attackers=[0,2]", "data_dir=elsewhere", "store=elsewhere"])
def test_a_run_may_grow_and_move_without_becoming_another(override):
    assert load_config(overrides=[override]).digest == load_config().digest


def test_the_poisoned_fraction_is_filled_in_by_data_set_and_kept_when_given():
    assert load_config().attack.fraction == FRACTIONS["digits"] == 0.5
    for dataset in ("mnist", "fashion-mnist", "cifar10", "mine.npz", "digits.npz"):
        assert load_config(None, [f"dataset={dataset}"]).attack.fraction == FRACTION == 0.05
    assert load_config(None, ["attack.fraction=0.07"]).attack.fraction == 0.07
    assert RunConfig().attack.fraction == 0.5
    assert load_config(None, ["attack.fraction=0.5"]).digest == load_config().digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("datasett: digits", ["datasett", "unknown key"]),
        ("attack: {kinds: patch}", ["attack.kinds", "unknown key"]),
        ("users: 1", ["users", "greater than or equal to 2", "got 1"]),
        ("users: many", ["users", "integer", "'many'"]),
        ("users: true", ["users", "true"]),
        ("users: 12.5", ["users", "12.5"]),
        ("users:", ["users", "None"]),
        ("attack: {kind: magic}", ["attack.kind", "patch", "magic"]),
        ("attack: {fraction: 0}", ["attack.fraction", "greater than 0"]),
        ("attack: {fraction: 1.01}", ["attack.fraction"]),
        ("attack: {fraction: .nan}", ["attack.fraction"]),
        ("attack: {attackers: []}", ["attack.attackers"]),
        ("attack: {attackers: [1, 1]}", ["attackers", "distinct"]),
        ("attack: {attackers: [-1]}", ["attackers", "0 or more"]),
        ("attack: {attackers: [13]}", ["13 attackers among 12 users"]),
        ("attack: {attackers: [3], groups: 5}", ["15 attackers among 12 users"]),
        ("attack: patch", ["attack", "patch"]),
        ("decoder: {max_attackers: 13}", ["max_attackers", "13 among 12"]),
        ("decoder: {success_rate: 1.5}", ["decoder.success_rate"]),
        ("split: {alpha: 1}", ["split", "alpha"]),
        ("split: {kind: dirichlet}", ["split", "alpha"]),
        ("split: {kind: dirichlet, alpha: .inf}", ["split.alpha"]),
        ("split: {kind: dirichlet, alpha: -1}", ["split.alpha"]),
        ("code: {name: c, file: x.csv}", ["code", "not both"]),
        ("code: {utilization: 0.5, row_weight: 3}", ["code", "not both"]),
        ("code: {utilization: 1}", ["code.utilization"]),
        ("training: {epochs: 0}", ["training.epochs"]),
        ("training: {epochs: no}", ["training", "epochs", "false"]),
        ("training: {learning_rate: 0}", ["training.learning_rate"]),
        ("seed: -1", ["seed"]),
        ("seed: 99999999999999", ["seed"]),
        ("repeats: 0", ["repeats"]),
        ("users: 1\nrepeats: 0\nfoo: 1", ["users", "repeats", "foo"]),
        ("1: 2", ["1"]),
        ("[1, 2]", ["expected keys and values", "list"]),
        ("just words", ["expected keys and values", "str"]),
        ("a: [1", ["not readable as YAML"]),
        ("a: !!python/object/apply:os.system ['true']", ["not readable as YAML"]),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line_that_names_the_key(tmp_path, text, words):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"bad\.yaml") as caught:
        load_config(file)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such configuration file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "raw.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"raw\.yaml: not UTF-8"):
        load_config(tmp_path / "raw.yaml")


@pytest.mark.parametrize("text", ["seed: 1\nseed: 2\n", "attack:\n  kind: split\n  kind: patch\n"])
def test_a_key_that_stands_there_twice_is_refused(tmp_path, text):
    (tmp_path / "twice.yaml").write_text(text)
    with pytest.raises(InputError, match=r"twice.yaml: not readable as YAML: .* stands there twice"):
        load_config(tmp_path / "twice.yaml")


def test_empty_files_and_sections_mean_the_defaults(tmp_path):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    (tmp_path / "sections.yaml").write_text("attack:\ntraining:\n")
    assert load_config(tmp_path / "empty.yaml") == load_config(tmp_path / "sections.yaml") == load_config()
    assert load_config(tmp_path / "sections.yaml", ["attack.kind=blended"]).attack.kind == "blended"


def test_overrides_win_over_the_file_and_the_last_one_wins(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"seed": 1, "attack": {"kind": "split", "groups": 2}}))
    config = load_config(tmp_path / "a.yaml", ["attack.kind=blended", "seed=2", "seed=3", "attack.attackers=[0, 1]"])
    assert (config.seed, config.attack.kind, config.attack.groups) == (3, "blended", 2)
    assert config.attack.attackers == (0, 1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "expected key=value"),
        ("=3", "expected key=value"),
        ("seed=[1", "not readable as YAML"),
        ("seed.more=1", "seed"),
        ("attack.kind.more=1", "attack.kind"),
        ("nothing=1", "nothing: unknown key"),
        ("attack.nothing=1", "attack.nothing: unknown key"),
        ("attack..kind=1", "attack"),
        ("seed=", "seed"),
        ("seed=yes", "seed"),
    ],
)
def test_a_bad_override_is_refused_by_name(override, message):
    with pytest.raises(InputError) as caught:
        load_config(None, [override])
    assert message in str(caught.value)


def test_a_configuration_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        load_config().seed = 3


@pytest.mark.parametrize(
    "text",
    [
        "users: !!int ''",
        "users: !!float ''",
        "users: !!bool x",
        "users: !!timestamp x",
        "users: " + ":".join(["1"] * 400) + ".5",
        "users: " + ":".join(["1"] * 10_000),
        "users: 0x" + "f" * 6000,
        "attack: {attackers: [0x" + "f" * 6000 + "]}",
        '"a\\nb": 1',
        "a" * 20_000 + ": 1",
        "users: " + "a" * 20_000,
        "\n".join(f"k{i}: 1" for i in range(3000)),
        "users: [" + "[],[]," * 5000 + "1]",
        "users: [" + "a," * 200_000 + "a]",
    ],
    ids=range(14),
)
def test_what_fuzzing_found_is_refused_in_one_short_line(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    begin = time.process_time()
    with pytest.raises(InputError) as caught:
        load_config(tmp_path / "c.yaml")
    assert time.process_time() - begin < 5
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000 + len(str(tmp_path))


def test_a_revocation_of_many_users_is_read_in_time(tmp_path):
    code = Code([[1] * 20_000] * 2)
    code.save(tmp_path / "code.json")
    Revocation(code, (tuple(range(10_000)),)).save(tmp_path)
    begin = time.process_time()
    with pytest.raises(InputError, match="was the folder edited"):
        load_revocation(tmp_path)
    assert time.process_time() - begin < 5


def test_a_stored_run_that_names_no_decoder_has_the_papers(tmp_path):
    config = RunConfig(code={"name": "d"}, decoder={"name": "bayes"})
    stored = yaml.safe_load(config.to_yaml())
    del stored["decoder"]["name"], stored["decoder"]["false_alarm_rate"]
    stored["code"] |= {"attackers": 3, "guarantee": "correct"}  # as earlier versions wrote, also for named codes
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored))
    kept = RunFolder(tmp_path).config
    assert kept == config
    assert kept.digest == config.digest
    assert kept.digest != RunConfig(code={"name": "d"}, decoder={"name": "discounted"}).digest


def test_settings_of_the_designer_count_only_where_it_designs():
    assert RunConfig(code={"name": "d", "margin": 5}).digest == RunConfig(code={"name": "d"}).digest
    assert RunConfig(users=12).code.name == "btc2412"
    assert RunConfig(users=16).code.name is None
    designed = RunConfig(code={"margin": 5})
    assert designed.code.name is None
    assert designed.digest != RunConfig(code={"margin": 4}).digest


@pytest.mark.parametrize(
    ("overrides", "recipe"),
    [
        ([], "modern"),
        (["training.architecture=fast"], "modern"),
        (["training.architecture=mlp"], "paper"),
        (["training.architecture=mlp", "training.recipe=modern"], "modern"),
    ],
)
def test_a_configuration_says_its_recipe(overrides, recipe):
    assert load_config(None, overrides).training.recipe == recipe
