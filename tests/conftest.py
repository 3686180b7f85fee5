"""Settings that hold for every test."""

import os

from hypothesis import settings

# No deadlines: the first example of a test may compile a kernel. CI replays the same examples on every run, a person's
# machine explores new ones.
settings.register_profile("explore", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "explore")
