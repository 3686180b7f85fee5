import threading

import pytest

from codeward.training._engines import Reporter, TaskCallbacks


def test_every_task_is_announced_once_after_its_last_model():
    told = []
    with TaskCallbacks([("a", "b"), ("b",), ("c",), ()], {"a", "b"}, told.append) as callbacks:
        assert sorted(told) == [2, 3]  # lacking nothing, and announced before anything trains
        callbacks.finish_model("b")
        callbacks.finish_model("a")
    assert told[2:] == [1, 0]


def test_announcements_run_beside_training_and_one_at_a_time():
    here, running, most = threading.current_thread(), [], []

    def tell(task):
        assert threading.current_thread() is not here
        running.append(task)
        most.append(len(running))
        running.remove(task)

    with TaskCallbacks([(key,) for key in "abcdef"], set("abcdef"), tell) as callbacks:
        for key in "fedcba":
            callbacks.finish_model(key)
    assert most == [1] * 6


def test_an_error_in_a_callback_reaches_the_caller():
    def tell(task):
        raise ValueError("disk full")

    with pytest.raises(ValueError, match="disk full"), TaskCallbacks([("a",)], {"a"}, tell) as callbacks:
        callbacks.finish_model("a")


def test_after_an_error_in_training_that_error_is_raised():
    def train():
        with TaskCallbacks([("a",)], {"a"}, lambda task: None) as callbacks:
            callbacks.finish_model("a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()


def test_nobody_need_listen():
    with TaskCallbacks([("a",)], {"a"}, None) as callbacks:
        callbacks.finish_model("a")


def test_the_rate_counts_from_the_last_start_on(monkeypatch):
    clock, notes = [0.0], []

    class Heard:
        def advance(self, amount=1, note=""):
            notes.append(note)

    monkeypatch.setattr("codeward.training._engines.time.monotonic", lambda: clock[0])
    reporter = Reporter(Heard(), 2)
    for start in (0.0, 100.0):  # models of two recipes: kernels are compiled before each
        clock[0] = start
        reporter.begin()
        clock[0] = start + 2
        reporter.advance(images=500)
    assert [note.split(", ")[-1] for note in notes] == ["250 images/s"] * 2
