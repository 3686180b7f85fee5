"""How the package is built: names mean one thing, modules stay readable, nobody reaches into private rooms."""

import ast
import inspect
import pkgutil
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

import codeward

SOURCE = Path(__file__).parents[1] / "src" / "codeward"
MODULES = sorted(SOURCE.rglob("*.py"))


TESTS = sorted(Path(__file__).parent.rglob("*.py"))
#: It compares the answers of decoders before and after their internals are changed on purpose.
TWINS = {"test_compiled.py"}


def list_reached(file, package):
    """Return the private modules of other packages that a file imports."""
    reached = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            # codeward._files and its like are the package's own, shared by all.
            private = [
                i for i, part in enumerate(parts) if i > 1 and part.startswith("_") and not part.startswith("__")
            ]
            if parts[0] == "codeward" and private and parts[1] != package:
                reached.append(name)
    return reached


def test_the_package_has_as_many_modules_as_it_needs():
    # What was reached, and a little room: whoever needs more merges two others, or says in architecture.md why not.
    assert 50 < len(MODULES) <= 221


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_no_test_module_is_longer_either(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_module_is_longer_than_a_reader_can_hold_in_mind(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_nobody_imports_a_private_module_of_another_package(file):
    assert not list_reached(file, file.relative_to(SOURCE).parts[0])


@pytest.mark.parametrize("file", sorted((SOURCE.parents[1] / "benchmarks").glob("*.py")), ids=lambda file: file.name)
def test_benchmarks_use_public_parts(file):
    assert not list_reached(file, None)


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_tests_reach_into_their_own_package_at_most(file):
    if file.name not in TWINS:
        assert not list_reached(file, file.parent.name)


def test_a_file_name_means_one_thing():
    homes = defaultdict(list)
    for file in MODULES:
        if file.stem not in {"__init__", "__main__"}:
            homes[file.stem.lstrip("_")].append(str(file.relative_to(SOURCE)))
    # Flower asks for these two names in every app.
    doubled = {name: files for name, files in homes.items() if len(files) > 1 and not name.endswith("_app")}
    assert not doubled


def test_a_class_name_means_one_thing():
    homes = defaultdict(list)
    for file in MODULES:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(file.relative_to(SOURCE)))
    assert not {name: files for name, files in homes.items() if len(files) > 1}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_percentages_are_written_by_one_rule(file):
    # codeward._figures.show_percent, or draw.js's twin of it: no format of its own anywhere else.
    own = re.findall(r":[ ,]?\.\d(?:%|f\}%)", file.read_text(encoding="utf-8"))
    assert not own or file.name == "_figures.py"


#: Packages, the one of a single module, and the two modules that Flower asks for by name.
PUBLIC = [
    *("codeward", "codeward.attacks", "codeward.federated.client_app", "codeward.federated.server_app"),
    *sorted(found.name for found in pkgutil.walk_packages(codeward.__path__, "codeward.") if found.ispkg),
]


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_has_an_example_that_runs(name):
    # `pytest --doctest-modules src/codeward`, part of `make test`, runs them.
    module = import_module(name)
    public = {known: getattr(module, known) for known in getattr(module, "__all__", ())}
    ours = {
        known: found
        for known, found in public.items()
        if (inspect.isclass(found) or inspect.isroutine(found)) and found.__module__.startswith("codeward")
    }
    without = {known for known, found in ours.items() if not re.search(r">>> (?!.*\+SKIP)", found.__doc__ or "")}
    assert without == set()


#: They have a ``code.json`` of their own: the folder of a federation's server, and a federated run that begins with it.
OTHER_FOLDERS = {"_federation_folder.py", "_federated_run.py"}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_nobody_but_runs_spells_a_path_of_a_run_folder(file):
    names = r"(.*/)?(config\.yaml|code\.json|revocation\.json|card\.json|repeat\S*-attackers\S*)"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    spelled = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(names, node.value)
    ]
    assert not spelled or file.parent.name == "runs" or file.name in OTHER_FOLDERS
