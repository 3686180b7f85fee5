"""Mutation run: do the tests notice when what is proved is changed? ``make mutate``, not part of CI.

A seeded sample of small changes (``benchmarks/mutants.py``) to the functions that decide what is promised. The quick
tests of a part are collected once; for each change a process is forked, the changed function is put in place of the
original in its memory, and the tests that call it run until one fails, with the compiler off (NUMBA_DISABLE_JIT=1)
and few examples a property. No file is changed. A change that no test notices is printed; those that change nothing a
test could see are listed with the reason in ``benchmarks/records/equivalent_mutants.json``.

    python -m benchmarks.mutate [--sample 150] [--seed 0] [--only PART] [--match REGEX] [--again FILE] [--jobs 1]
        [-o FILE] [--record FILE]

Not in any part: how the fitted decoders are tuned (``decoding/soft/_opinions.py`` and the fit itself), which is
measured, not proved. What was measured is in ``benchmarks/records/mutants.json``; the share is that of the killed among
those not listed as equivalent.
"""

import argparse
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.mutants import SOURCE, Mutant, list_mutants, put_in_place

ROOT = SOURCE.parent
EQUIVALENT = ROOT / "benchmarks" / "records" / "equivalent_mutants.json"
PACKAGE = SOURCE / "codeward"

#: Parts by name: what is changed (a pattern of paths under src/codeward, and after a colon one of functions in it) and
#: the tests that are to notice, the quickest first.
PARTS: dict[str, tuple[list[str], list[str]]] = {
    "codes": (
        ["codes/_properties.py", "codes/_patterns.py", "codes/_conflicts.py"],
        [
            "tests/codes/test_pattern_table.py",
            "tests/codes/test_conflicts.py::test_lookup_finds_what_comparing_all_pairs_finds",
            "tests/codes/test_conflicts.py::test_sets_walked_in_parts_give_the_same_conflicts",
            "tests/codes/test_conflicts.py::test_margins_are_looked_up_as_they_are",
            "tests/codes/test_conflicts.py::test_keys_are_half_as_long_again_as_numbers_of_the_sets",
            "tests/codes/test_conflicts.py::test_too_many_candidates_are_refused_and_not_called_clean",
            "tests/codes/test_conflicts.py::test_fewer_models_than_the_margin_are_a_conflict",
            "tests/codes/test_properties.py",
            "tests/codes/test_paper.py",
            "tests/certificates/test_theory.py",
        ],
    ),
    "verdicts": (
        ["decoding/_vote_counting.py", "decoding/_nearest.py", "decoding/_decoded.py", "decoding/_attacker_sets.py"],
        [
            "tests/decoding/test_counting_twins.py",
            "tests/decoding/test_verdict_twins.py",
            "tests/decoding/test_bayes_twins.py",
            "tests/decoding/test_two_group_twins.py",
            "tests/decoding/test_consensus.py",
            "tests/decoding/test_nearest.py",
            "tests/certificates/test_appeal.py",
        ],
    ),
    "posterior": (
        ["decoding/_bayes.py", "decoding/_two_groups.py"],
        [
            "tests/decoding/test_bayes_twins.py",
            "tests/decoding/test_two_group_twins.py",
            "tests/decoding/test_bayes.py::test_wrong_input_is_refused_in_words",
            "tests/decoding/test_bayes.py::test_a_torch_device_gives_the_same_answer",
            "tests/decoding/test_bayes.py::test_evidence_of_every_set_is_refused_when_there_are_too_many",
            "tests/decoding/test_two_groups.py::test_what_cannot_be_decoded_is_refused_with_a_reason",
            "tests/decoding/test_two_groups.py::test_many_users_are_refused_before_their_sets_are_listed",
            "tests/decoding/test_two_groups.py::test_one_class_is_refused",
        ],
    ),
    "kernels": (
        ["decoding/_posterior_kernels.py"],
        ["tests/decoding/test_bayes_twins.py", "tests/decoding/test_two_group_twins.py"],
    ),
    "pruned": (
        ["decoding/_pruned*.py"],
        [
            "tests/decoding/test_pruned_twins.py",
            "tests/decoding/test_pruned.py::test_the_interval_for_sets_without_failed_hits_holds_the_mean",
        ],
    ),
    "pooling": (["decoding/_pooling.py"], ["tests/decoding/test_pooling.py", "tests/decoding/test_explanation.py"]),
    "soft": (
        [
            "decoding/soft/_candidates.py",
            "decoding/soft/_explanations.py",
            "decoding/soft/_learners.py",
            "decoding/soft/_attack_draws.py:draw_attacks",
            "decoding/soft/_attack_draws.py:overwrite_*",
        ],
        [
            "tests/decoding/test_soft_explanations.py",
            "tests/decoding/test_soft_simulation.py",
            "tests/decoding/test_soft_calibration.py",
            "tests/decoding/test_soft_candidates.py",
            "tests/decoding/test_soft_boosting.py",
        ],
    ),
    "runoff": (
        ["decoding/_runoff.py", "certificates/_runoff_*.py"],
        [
            "tests/certificates/test_runoff_twins.py",
            "tests/decoding/test_runoff.py",
            "tests/certificates/test_runoff_certificates.py",
        ],
    ),
    "appeal": (
        ["decoding/_runoff.py:AppealDecoder*", "certificates/_breakers.py:AppealBreaker*",
         "certificates/_breakers.py:_count_wins", "certificates/_breakers.py:force_another"],
        ["tests/certificates/test_appeal.py"],
    ),
    "breakers": (
        ["certificates/_breakers.py", "certificates/_coverage.py", "certificates/_pointwise.py"],
        [
            "tests/certificates/test_referee_twins.py",
            "tests/certificates/test_appeal.py",
            "tests/certificates/test_breakers.py",
            "tests/certificates/test_classes.py",
            "tests/certificates/test_certify.py",
            "tests/certificates/test_published.py",
            "tests/certificates/test_collective.py",
            "tests/certificates/test_agreement.py",
            "tests/certificates/test_soundness.py",
        ],
    ),
    "certificates": (
        ["certificates/_certificates.py", "certificates/_published.py", "certificates/_subjects.py",
         "certificates/_collective.py"],
        [
            "tests/certificates/test_referee_twins.py",
            "tests/certificates/test_classes.py",
            "tests/certificates/test_certify.py",
            "tests/certificates/test_published.py",
            "tests/certificates/test_collective.py",
            "tests/certificates/test_agreement.py",
            "tests/certificates/test_runoff_certificates.py::test_what_cannot_be_certified_is_said",
        ],
    ),
}  # fmt: skip
#: Methods that only draw.
PICTURES = ("._draw", "._sheet")
#: Tests that import torch, read results or take minutes without the compiler.
LEFT_OUT = ("every_proposition", "missing_is_said[soft", "real_models", "within_a_minute", "drawn_to",
            "recorded_votes", "repeated_and_shuffled", "unlikely_hypotheses", "sometimes_larger",
            "collective.py::test_patterns", "are_quick", "many_users_are_never_below", "learns_an_interaction",
            "poisoned_validation", "is_the_log_likelihood_ratio")  # fmt: skip
#: Examples of a property in one run, and how many times the seconds of the undisturbed tests a mutant gets.
EXAMPLES, PATIENCE = 15, 5
KILLED, SURVIVED = ("failed", "timeout"), "passed"


class _Few:
    """Fewer examples a property, always the same, and nothing slow."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Change the settings of what was collected."""
        from hypothesis import Phase, settings

        items[:] = [item for item in items if not any(word in item.nodeid for word in LEFT_OUT)]
        for item in items:
            inner = getattr(item.obj, "_hypothesis_internal_use_settings", None)
            if inner is not None:
                few = min(inner.max_examples, EXAMPLES)
                quick = settings(
                    inner, max_examples=few, derandomize=True, deadline=None, database=None, phases=[Phase.generate]
                )
                getattr(item.obj, "__func__", item.obj)._hypothesis_internal_use_settings = quick


class _Loop:
    """Runs the collected tests once for every mutant instead of once."""

    def __init__(self, name: str, mutants: list[Mutant], reasons: dict[str, str], jobs: int) -> None:
        self.name, self.mutants, self.reasons, self.jobs = name, mutants, reasons, jobs
        self.verdicts: dict[str, list[Mutant]] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        """Fork, change, run; print what happened."""
        reach = _trace(session)
        if reach is None:
            return True
        print(f"{self.name}: {len(self.mutants)} mutants, {len(session.items)} tests", flush=True)
        self.verdicts = {"failed": [], "timeout": [], SURVIVED: [], "equivalent": []}
        self.verdicts["equivalent"] = [mutant for mutant in self.mutants if mutant.key in self.reasons]
        tried = [mutant for mutant in self.mutants if mutant.key not in self.reasons]
        for mutant, verdict in _run(session, tried, reach, self.jobs):
            self.verdicts[verdict].append(mutant)
            if verdict == SURVIVED:
                print(f"  survived: {mutant.module} {mutant.key}", flush=True)
        print(f"{self.name}: {self.count()}", flush=True)
        return True

    def count(self) -> dict[str, Any]:
        """Count what happened, for the record."""
        counts = {verdict: len(found) for verdict, found in self.verdicts.items()}
        killed = sum(counts[verdict] for verdict in KILLED)
        return {
            "sampled": len(self.mutants),
            "killed": killed,
            "killed_by_time": counts["timeout"],
            "equivalent": counts["equivalent"],
            "surviving": counts[SURVIVED],
            "share": round(killed / max(1, killed + counts[SURVIVED]), 3),
        }


def _trace(session: Any) -> list[tuple[float, set[str]]] | None:
    """Run the unchanged tests in a forked process; seconds of each and the functions it calls, None where one fails."""
    with tempfile.TemporaryFile("w+") as file:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _mute()
                found = [_trace_one(item) for item in session.items]
                json.dump(found, file)
                file.flush()
                code = int(session.testsfailed > 0)
            finally:
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            return None
        file.seek(0)
        return [(seconds, set(called)) for seconds, called in json.load(file)]


def _trace_one(item: Any) -> tuple[float, list[str]]:
    """Run one test; its seconds of the processor and the functions of the package that it calls."""
    codes: set[Any] = set()
    begin = time.process_time()
    sys.settrace(lambda frame, _event, _argument: codes.add(frame.f_code))
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    sys.settrace(None)
    called = {f"{code.co_filename}:{code.co_qualname}" for code in codes if str(PACKAGE) in code.co_filename}
    return time.process_time() - begin, sorted(called)


def _run(session: Any, mutants: list[Mutant], reach: list[Any], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Test every mutant in a forked process, ``jobs`` at a time; yields it with "passed", "failed" or "timeout".

    Only the tests that call the changed function are run, the quickest first. Time is that of the processor: a busy
    machine is no proof that a change was noticed.
    """
    waiting = list(reversed(mutants))
    running: dict[int, Mutant] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            place = f"{SOURCE.joinpath(*mutant.module.split('.')).with_suffix('.py')}:{mutant.function}"
            chosen = sorted((spent, number) for number, (spent, called) in enumerate(reach) if place in called)
            limit = max(10.0, PATIENCE * sum(spent for spent, _ in chosen))
            child = os.fork()
            if child == 0:
                _test(session, mutant, [session.items[number] for _, number in chosen], int(limit))
            running[child] = mutant
        child, status = os.waitpid(-1, 0)
        if child in running:
            code = os.waitstatus_to_exitcode(status)
            yield running.pop(child), "timeout" if code == -signal.SIGXCPU else "failed" if code else SURVIVED


def _test(session: Any, mutant: Mutant, items: list[Any], limit: int) -> None:
    """Run tests against a change until one fails, and end this process."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        _mute()
        put_in_place(mutant)
        for item in items:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if session.testsfailed:
                break
        code = int(session.testsfailed > 0)
    finally:
        os._exit(code)


def _mute() -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)


def find_mutants(part: str, wanted: set[tuple[str, str]] | None = None) -> list[Mutant]:
    """List the changes of a part; with code for those ``wanted`` (module and key)."""
    found: dict[tuple[str, str], Mutant] = {}
    for pattern in PARTS[part][0]:
        place, _, functions = pattern.partition(":")
        paths = [path for path in sorted(PACKAGE.rglob("*.py")) if fnmatch(str(path.relative_to(PACKAGE)), place)]
        if not paths:
            raise SystemExit(f"no module is called {place}")
        for path in paths:
            for mutant in list_mutants(part, path, wanted):
                if fnmatch(mutant.function, functions or "*") and not mutant.function.endswith(PICTURES):
                    found[mutant.module, mutant.key] = mutant
    return list(found.values())


def main(arguments: list[str] | None = None) -> int:
    """Sample, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=150, help="mutants to try of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--match", default="", help="regular expression that the key must contain")
    parser.add_argument("--again", type=Path, help="survivors of an earlier run (JSON) instead of a sample")
    parser.add_argument("--show", action="store_true", help="list the sample and stop")
    parser.add_argument("-o", "--output", type=Path, help="survivors as JSON")
    parser.add_argument("--record", type=Path, help="counts of every part as JSON; parts that were not run are kept")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    reasons = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    again = json.loads(given.again.read_text()) if given.again else None
    survivors: list[dict[str, str]] = []
    for name in [given.only] if given.only else list(PARTS):
        every = [m for m in find_mutants(name) if re.search(given.match, f"{m.module} {m.key}")]
        # Each part by itself: a part alone gets the same sample as with all others.
        chosen = random.Random(given.seed).sample(every, min(given.sample, len(every)))
        keys = {(mutant.module, mutant.key) for mutant in chosen}
        if again is not None:
            keys = {(found["module"], found["key"]) for found in again}
        sample = [mutant for mutant in find_mutants(name, keys) if mutant.code is not None]
        print(f"{name}: {len(sample)} of {len(every)} mutants, seed {given.seed}")
        if given.show:
            print(*(f"  {mutant.module} {mutant.key}" for mutant in sample), sep="\n")
            continue
        import pytest

        loop = _Loop(name, sample, reasons, given.jobs)
        # Without the compiler NumPy warns where words of 64 bits wrap around.
        options = ["-q", "-s", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning", "-m", "not slow"]
        pytest.main([*options, *PARTS[name][1]], plugins=[_Few(), loop])
        if not loop.verdicts:
            print(f"{name}: its tests fail without any change")
            return 1
        alive = loop.verdicts[SURVIVED]
        survivors += [{"part": name, "module": mutant.module, "key": mutant.key} for mutant in alive]
        if given.record:
            record = json.loads(given.record.read_text()) if given.record.exists() else {}
            record[name] = {"seed": given.seed, "mutants": len(every), **loop.count()}
            record[name]["survivors"] = [f"{mutant.module} {mutant.key}" for mutant in alive]
            given.record.write_text(json.dumps(record, indent=1) + "\n")
        if given.output:
            given.output.write_text(json.dumps(survivors, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    raise SystemExit(main())
