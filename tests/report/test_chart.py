"""Charts: what they draw is where it should be, and labels can be read."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward._charts import HEIGHT, LABEL_GAP, Line, Point, draw_lines, draw_shares, place_y, spread_labels


@given(st.lists(st.floats(0, 1), min_size=1, max_size=14))
def test_labels_keep_their_distance_their_order_and_the_chart(shares):
    heights = [place_y(share) for share in shares]
    moved = spread_labels(heights)
    ordered = sorted(moved)
    assert all(b - a >= LABEL_GAP - 1e-9 for a, b in pairwise(ordered))
    assert ordered[0] >= 0
    assert ordered[-1] <= HEIGHT
    above = [(a, b) for a in range(len(heights)) for b in range(len(heights)) if heights[a] < heights[b]]
    assert all(moved[a] < moved[b] for a, b in above)


def test_labels_that_do_not_touch_stay_where_their_lines_end():
    heights = [place_y(0.9), place_y(0.5), place_y(0.1)]
    assert spread_labels(heights) == heights


def test_a_higher_share_is_drawn_higher_and_the_pointer_is_told_the_counts():
    points = tuple(Point(x, y, 0.1, f"<{x}> of 5") for x, y in enumerate((0.9, 0.2)))
    chart = draw_lines([Line("a & b", "blue", False, "disc", points)], "it", "attackers", (0, 1))
    first, second = (float(y) for y in re.findall(r'<circle [^>]*cy="([\d.]+)"', chart))
    assert first < second
    assert first == pytest.approx(place_y(0.9), abs=0.05)
    assert "<title>&lt;0&gt; of 5</title>" in chart
    assert "a &amp; b" in chart


def test_bars_end_where_shares_do():
    wide = (Point(0, 0.95, 0.3, ""), Point(1, 0.1, 0.3, ""))
    chart = draw_lines([Line("a", "blue", True, "frame", wide)], "it", "attackers", (0, 1))
    ends = [
        float(y)
        for bar in re.findall(r'class="bar-line[^"]*" d="([^"]+)"', chart)
        for y in re.findall(r"V([\d.]+)", bar)
    ]
    assert ends[0] == pytest.approx(place_y(1), abs=0.05)
    starts = re.findall(r'class="bar-line[^"]*" d="M[\d.]+ ([\d.]+)h', chart)
    assert float(starts[1]) == pytest.approx(place_y(0), abs=0.05)


def test_a_line_without_points_is_left_out():
    line = Line("nothing", "blue", False, "disc", ())
    assert "nothing" not in draw_lines([line], "it", "attackers", (0, 1))


def test_ticks_may_have_names_of_their_own():
    line = Line("a", "blue", False, "disc", (Point(0, 0.5, None, ""), Point(1, 0.5, None, "")))
    chart = draw_lines([line], "it", "rate", (0, 1), ("0.5", "<0.1"))
    (names,) = re.findall(r'<g text-anchor="middle">(.*?)</g>', chart)
    ticks = re.findall(r">([^<]+)</text>", names)
    assert ticks == ["0.5", "&lt;0.1", "rate"]
    with pytest.raises(ValueError, match="shorter"):
        draw_lines([line], "it", "rate", (0, 1), ("0.5",))


def test_rows_of_shares_are_apart_without_a_style_sheet():
    """The report takes a picture apart and leaves its style sheet out: the size of letters stands at the letters."""
    letters = re.findall(
        r"<text[^>]*y=\"(\d+)\"[^>]*style=\"font-size:(\d+)px\"", draw_shares(np.eye(12), "user", "class")
    )
    rows = [int(y) for y, _ in letters[:12]]
    assert len(letters) == 24
    assert all(b - a > int(size) for (a, b), (_, size) in zip(pairwise(rows), letters, strict=False))
