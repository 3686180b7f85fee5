import threading

import pytest

from codeward.training._jobs import Announcer


def test_every_task_is_announced_once_after_its_last_model():
    told = []
    with Announcer([("a", "b"), ("b",), ("c",), ()], {"a", "b"}, told.append) as announcer:
        assert sorted(told) == [2, 3]  # lacking nothing, and announced before anything trains
        announcer.note("b")
        announcer.note("a")
    assert told[2:] == [1, 0]


def test_announcements_run_beside_training_and_one_at_a_time():
    here, running, most = threading.current_thread(), [], []

    def tell(task):
        assert threading.current_thread() is not here
        running.append(task)
        most.append(len(running))
        running.remove(task)

    with Announcer([(key,) for key in "abcdef"], set("abcdef"), tell) as announcer:
        for key in "fedcba":
            announcer.note(key)
    assert most == [1] * 6


def test_an_error_in_a_callback_reaches_the_caller():
    def tell(task):
        raise ValueError("disk full")

    with pytest.raises(ValueError, match="disk full"), Announcer([("a",)], {"a"}, tell) as announcer:
        announcer.note("a")


def test_after_an_error_in_training_that_error_is_raised():
    def train():
        with Announcer([("a",)], {"a"}, lambda task: None) as announcer:
            announcer.note("a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()


def test_nobody_need_listen():
    with Announcer([("a",)], {"a"}, None) as announcer:
        announcer.note("a")
