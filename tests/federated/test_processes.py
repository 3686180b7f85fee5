import os
import sys
import time

import psutil
import pytest

from codeward.federated._flower_simulation import ProcessTree, end_leftovers

#: Starts a child in a session of its own, which starts another, tells both numbers, and waits.
PARENT = """
import subprocess, sys, time
child = "import subprocess, sys, time; " \\
        "own = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); " \\
        "print(own.pid, flush=True); time.sleep(60)"
found = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print(found.pid, flush=True)
time.sleep(60)
"""


def list_processes():
    found = psutil.process_iter(["status"])
    return [process.pid for process in found if process.info["status"] != psutil.STATUS_ZOMBIE]


def start(tmp_path, source=PARENT):
    (tmp_path / "parent.py").write_text(source)
    environment = os.environ | {"PATH": os.path.dirname(sys.executable)}
    name = os.path.basename(sys.executable)
    return ProcessTree([name, str(tmp_path / "parent.py")], environment, tmp_path, tmp_path / "log")


def read_numbers(log):
    deadline = time.monotonic() + 30
    while len(numbers := log.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(number) for number in numbers]


def test_the_end_reaches_descendants_in_sessions_of_their_own(tmp_path):
    tree = start(tmp_path)
    numbers = read_numbers(tmp_path / "log")
    assert set(numbers) <= set(list_processes())
    tree.end()
    assert not tree.running
    assert not set(numbers) & set(list_processes())


def test_descendants_whose_parent_died_are_still_known(tmp_path):
    tree = start(tmp_path)
    numbers = read_numbers(tmp_path / "log")
    tree.note()
    tree.process.kill()
    tree.process.wait()
    tree.end()
    assert not set(numbers) & set(list_processes())


def test_a_number_that_was_given_to_another_process_is_not_signalled(tmp_path):
    tree = start(tmp_path, "")
    tree.process.wait()
    # This very process, with another time of birth: it must survive.
    other = psutil.Process()
    other._ident = (other.pid, 1.0)
    tree.known.add(other)
    tree.end(patience=0.1)


STARTER_PROGRAM = """
import os, sys, time
from pathlib import Path
from codeward.federated._flower_simulation import STARTER, ProcessTree, name_starter

folder = Path(sys.argv[1])
told = {"PATH": os.path.dirname(sys.executable), "FLWR_HOME": str(folder / "home"), STARTER: name_starter(os.getpid())}
ProcessTree([os.path.basename(sys.executable), str(folder / "parent.py")], os.environ | told, folder, folder / "log")
time.sleep(60)
"""


def test_what_a_killed_simulation_left_running_is_ended_before_another_starts(tmp_path):
    """SIGKILL leaves no time to end anything: the server would go on training into the folder of the next one."""
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "log").touch()
    starter = psutil.Popen([sys.executable, "-c", STARTER_PROGRAM, str(tmp_path)])
    try:
        numbers = read_numbers(tmp_path / "log")
        with pytest.raises(ValueError, match=f"process {starter.pid} is training there"):
            end_leftovers(tmp_path / "home")
    finally:
        starter.kill()
        starter.wait()
    end_leftovers(tmp_path / "elsewhere")
    assert set(numbers) <= set(list_processes())
    end_leftovers(tmp_path / "home")
    assert not set(numbers) & set(list_processes())


def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"flower-superlink is missing: pip install 'codeward\[flower\]'"):
        ProcessTree(["flower-superlink"], {"PATH": str(tmp_path)}, tmp_path, tmp_path / "log")
