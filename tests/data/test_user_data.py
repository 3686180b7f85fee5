"""One's own data: every source gives the same values, names are kept, and bad files are told in one line."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.data import Column, InputTable, Schema, load_user_data, read_csv_text, read_records
from codeward.data import _user_sources as user_sources
from codeward.data._table import vote_kinds

ROWS = [
    {"age": 41, "city": "Ulm", "risk": "high", "clinic": "clinic-03"},
    {"age": None, "city": "Bonn", "risk": "low", "clinic": "clinic-01"},
    {"age": 7.5, "city": None, "risk": "low", "clinic": "clinic-03"},
    {"age": 60, "city": "Ulm", "risk": "high", "clinic": "clinic-02"},
]


def write_csv(path, rows=ROWS):
    names = list(rows[0])
    lines = [",".join(names)]
    lines += [",".join("" if row[name] is None else str(row[name]) for name in names) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_lines(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def write_parquet(path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


def make_frame(_):
    return pytest.importorskip("pandas").DataFrame(ROWS)


def make_mapping(_):
    return {name: [row[name] for row in ROWS] for name in ROWS[0]}


class Hub:
    """What a Hugging Face data set shows of itself."""

    def __init__(self, rows=ROWS, form=None, **classes):
        self.rows, self.form, self.column_names = rows, form, list(rows[0])
        self.features = {name: SimpleNamespace(names=names) for name, names in classes.items()}

    def with_format(self, form):
        made = Hub(self.rows, form)
        made.features = self.features
        return made

    def __getitem__(self, name):
        values = [row[name] for row in self.rows]
        return values if self.form is None else [f"{self.form}({value})" for value in values]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (write_csv, "own.csv"),
        (write_lines, "own.jsonl"),
        (write_parquet, "own.parquet"),
        (make_frame, ""),
        (make_mapping, ""),
        (lambda _: Hub(), ""),
        (lambda _: Hub(form="tensor"), ""),
        (lambda _: Hub([row | {"risk": ["low", "high"].index(row["risk"])} for row in ROWS], risk=["low", "high"]), ""),
        (lambda _: {"train": Hub(), "test": Hub(ROWS[:2])}, ""),
    ],
)
def test_every_source_gives_the_same_values(tmp_path, make, name):
    data = load_user_data(make(tmp_path / name), label="risk")
    assert data.user_names == ("clinic-01", "clinic-02", "clinic-03")
    assert data.class_names == ("high", "low")
    assert data.users.tolist() == [2, 0, 2, 1]
    assert data.labels.tolist() == [0, 1, 1, 0]
    assert data.schema.columns == (Column("age", "numeric"), Column("city", "categorical"))
    assert (data.schema.label, data.schema.user, data.schema.origin) == ("risk", "clinic", "users")
    np.testing.assert_array_equal(data.inputs.columns["age"], [41, np.nan, 7.5, 60])
    assert data.inputs.columns["city"].tolist() == ["Ulm", "Bonn", None, "Ulm"]
    assert data.notes == ("column 'clinic' is taken for the user",)
    assert [part.tolist() for part in data.parts] == [[1], [3], [0, 2]]


def test_a_label_that_may_be_two_columns_is_asked_for(tmp_path):
    rows = [row | {"label": 1, "target": 2} for row in ROWS]
    with pytest.raises(InputError, match=r"several columns may be the label \(label, target\)"):
        load_user_data(write_csv(tmp_path / "own.csv", rows))
    with pytest.raises(InputError, match="which column is the label"):
        load_user_data(write_csv(tmp_path / "other.csv"))


def test_without_users_samples_go_to_parts_by_their_content():
    rows = {"x": list(range(200)), "y": ["a", "b"] * 100}
    data = load_user_data(rows, n_parts=7)
    assert data.hashed
    assert data.n_users == 7
    assert data.user_names[0] == "part-0"
    moved = load_user_data({"x": rows["x"][::-1], "y": ["b"] * 199 + ["a"]}, n_parts=7)
    assert data.users.tolist() == moved.users[::-1].tolist()  # neither place nor label decides


def test_one_user_cannot_turn_numbers_into_categories():
    def read(strange):
        rows = {"age": [1.0, 2.0, 3.0, 4.0, *strange], "y": list("ababab"), "user": ["a", "a", "b", "c", "d", "d"]}
        return load_user_data(rows)

    honest, attacked = read([5.0, 6.0]), read(["five", "<script>"])
    assert attacked.schema == honest.schema
    np.testing.assert_array_equal(attacked.inputs.columns["age"][:4], honest.inputs.columns["age"][:4])
    assert np.isnan(attacked.inputs.columns["age"][4:]).all()
    assert honest.firm == 1  # four voices: two that change sides make a draw


def test_firm_is_the_number_of_users_who_cannot_change_a_kind():
    # 5 voices for numbers: 2 liars leave 3 against 2, 3 liars win.
    def kind(liars):
        rows = {"v": ["word" if user < liars else "1" for user in range(5)], "y": list("ababa"), "user": list("vwxyz")}
        found = load_user_data(rows)
        return found.schema.columns[0].kind, found.firm

    assert kind(0) == ("numeric", 2)
    assert [kind(liars)[0] for liars in range(4)] == ["numeric", "numeric", "numeric", "categorical"]


def test_firm_counts_who_cannot_turn_text_into_categories():
    # 4 of 7 write sentences: one who writes words instead makes it a column of categories for all.
    def read(writers):
        notes = ["w " * (6 if user < writers else 2) for user in range(7)]
        return load_user_data({"note": notes, "y": list("abababa"), "user": list("tuvwxyz")})

    assert [(read(size).schema.columns[0].kind, read(size).firm) for size in (3, 4, 6, 7)] == [
        ("categorical", 0), ("text", 0), ("text", 2), ("text", 3),
    ]  # fmt: skip


def test_one_user_cannot_change_how_dates_and_pictures_of_others_are_read():
    pandas = pytest.importorskip("pandas")
    dates = pandas.to_datetime(["2024-01-01", None, "2024-01-03"])
    frame = pandas.DataFrame({"when": dates, "y": list("aba"), "user": list("abc")})
    stray = frame.astype({"when": object})
    stray.loc[2, "when"] = "soon"
    for other in (frame, frame.astype({"when": "datetime64[ns]"}), stray):
        assert load_user_data(other).inputs.columns["when"][:2].tolist() == ["2024-01-01 00:00:00", None]
    raw = {"when": frame["when"].to_numpy().astype("datetime64[ns]"), "y": list("aba"), "user": list("abc")}
    assert load_user_data(raw).inputs.columns["when"][:2].tolist() == ["2024-01-01 00:00:00", None]

    def read(last):
        return load_user_data({"x": [np.eye(2, dtype=int)] * 2 + [last], "y": list("aba"), "user": list("abc")})

    honest, attacked = read(np.eye(2, dtype=int)), read(np.full((2, 2), 0.5))
    assert np.array_equal(honest.inputs[:2], attacked.inputs[:2])
    assert attacked.inputs[2].max() == 128
    for first, told in ((3, r"sizes, \(\) and in row 1 \(2, 2\)"), (np.full((2, 2), 300), "row 0: images of int64")):
        with pytest.raises(InputError, match=told):
            load_user_data({"x": [first, *[np.eye(2)] * 2], "y": list("aba"), "user": list("abc")})


def test_one_record_does_not_order_the_columns_of_all(tmp_path):
    rows = [{"b": place % 3, "a": place, "y": place % 2, "user": f"u{place % 4}"} for place in range(16)]

    def read(rows):
        file = tmp_path / "own.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return load_user_data(file).schema

    assert read(rows) == read([dict(sorted(rows[0].items())), *rows[1:]])


def test_one_word_among_numbers_gives_no_other_row_another_voice(monkeypatch):
    """Without users parts vote about kinds; a column of a frame is of objects as soon as one value is."""
    heard = []

    def listen(inputs, owners, text):
        heard.append(owners)
        return vote_kinds(inputs, owners, text)

    monkeypatch.setattr(user_sources, "vote_kinds", listen)
    numbers = np.arange(40.0)
    mixed = np.array([*numbers.tolist()[:-1], "x"], dtype=object)
    for values in (numbers, mixed):
        load_user_data({"a": values, "y": [0, 1] * 20}, n_parts=5)
    assert heard[0][:-1].tolist() == heard[1][:-1].tolist()


def test_a_schema_is_obeyed_and_refuses(tmp_path):
    schema = Schema(
        (Column("age", "numeric"), Column("city", "categorical", ("Ulm",))), "risk", "clinic", ("high", "low", "none")
    )
    schema.save(tmp_path / "schema.json")
    loaded = Schema.load(tmp_path / "schema.json")
    assert loaded.origin == "declared"
    data = load_user_data(write_csv(tmp_path / "own.csv"), schema=loaded)
    assert data.class_names == ("high", "low", "none")
    assert data.firm is None
    assert data.inputs.columns["city"].tolist() == ["Ulm", None, None, "Ulm"]
    strange = [ROWS[0], ROWS[1] | {"risk": "poisoned"}]
    with pytest.raises(InputError, match=r"strange.csv: column 'risk': row 3: 'poisoned' is not declared"):
        load_user_data(write_csv(tmp_path / "strange.csv", strange), schema=loaded)


def test_records_and_csv_are_read_as_the_schema_has_them():
    schema = load_user_data(make_mapping(None), label="risk").schema
    table = read_records([{"city": "Ulm"}, {"age": 3, "city": 7}], schema)
    assert isinstance(table, InputTable)
    assert table.columns["city"].tolist() == ["Ulm", "7"]
    np.testing.assert_array_equal(read_csv_text("age,city\n,Ulm\n3,7\n", schema).columns["age"], [np.nan, 3])
    with pytest.raises(InputError, match="row 2, column 'age': 'old' is no number"):
        read_records([{"age": 3}, {"age": "old"}], schema)
    with pytest.raises(InputError, match="row 1: no column is named 'town'"):
        read_records([{"town": "Ulm"}], schema)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "two columns are named 'a'"),
        ("a,,y\n1,2,3\n", "column 2 has no name"),
        ("a,y\n1,2\n3\n", "line 3: 1 values, but the header names 2"),
        ('a,y\n"1,2\n', "not readable as CSV"),
        ("a;y\n1,5;0\n", "separated by ';' here: save it with ','"),
        ("a,y\n1,0\n2,\n", r"column 'y': row 3 has none \(1 of 2\); every sample needs one: fill it in, or remove"),
        ("a,y\n1,\n2,0\n3,\n4,1\n", r"column 'y': rows 2, 4 have none \(2 of 4\)"),
        ("a,y\n1,0\n2,0\n", "one class only"),
        ("a,y\n" + "".join(f"1,{i / 64}\n" for i in range(65)), "must be classes, not quantities"),
    ],
)
def test_bad_csv_is_told_in_one_line(tmp_path, text, told):
    file = tmp_path / "bad.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told) as error:
        load_user_data(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [("[1]", "line 2: expected an object"), ("{", "line 2: not readable"), ('{"a": [1]}', "line 2, column 'a'")],
)
def test_bad_json_lines_are_told_in_one_line(tmp_path, line, told):
    file = tmp_path / "bad.jsonl"
    file.write_text('{"a": 1, "y": 0}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=told):
        load_user_data(file)


def test_npz_with_images_or_vectors_keeps_names(tmp_path):
    images = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)
    names = {"labels": np.array(["cat", "dog", "cat", "dog"]), "groups": np.array(["ann", "bob", "ann", "carl"])}
    np.savez(tmp_path / "own.npz", images=images, **names)
    data = load_user_data(tmp_path / "own.npz")
    assert data.class_names == ("cat", "dog")
    assert data.user_names == ("ann", "bob", "carl")
    assert data.inputs.shape == (4, 1, 2, 3)
    assert data.schema.columns == (Column("image", "image", shape=(1, 2, 3)),)
    assert data.samples.labels.tolist() == [0, 1, 0, 1]
    numbers = images.reshape(4, 6).astype(np.float64)
    np.savez(tmp_path / "vectors.npz", X=numbers, y=names["labels"], groups=np.array([10, 9, 10, 2]))
    data = load_user_data(tmp_path / "vectors.npz")
    assert data.user_names == ("2", "9", "10")
    assert data.schema.kind == "features"
    np.testing.assert_array_equal(data.inputs, numbers)
    test = {"test_images": images[:2], "test_labels": names["labels"][:2]}
    np.savez(tmp_path / "tested.npz", images=images, **names, **test)
    tested = load_user_data(tmp_path / "tested.npz")
    assert len(tested.test) == 2
    assert tested.schema.classes == ("cat", "dog")
    np.savez(tmp_path / "short.npz", images=images, labels=np.array([0, 1]))
    with pytest.raises(InputError, match=r"labels of shape \(2,\)"):
        load_user_data(tmp_path / "short.npz")


def test_a_data_set_by_name_brings_its_test_set():
    data = load_user_data("digits")
    assert data.hashed
    assert data.schema.classes == tuple("0123456789")
    assert len(data.test) == 539
    with pytest.raises(InputError, match="no such file, folder or data set"):
        load_user_data("digitz")


@pytest.mark.parametrize("content", [{}, {"format": "codeward-schema/1"}, {"format": "codeward-schema/1", "columns": 3},
                                     {"format": "codeward-schema/1", "columns": [{"name": "a", "kind": "odd"}]},
                                     {"format": "codeward-schema/1", "columns": [3]}])  # fmt: skip
def test_a_bad_schema_is_refused(content):
    with pytest.raises(InputError, match="schema"):
        Schema.from_json(content)


def test_splits_of_a_hub_data_set():
    data = load_user_data({"train": Hub(), "test": Hub(ROWS[:2])}, "risk")
    assert data.test.labels.tolist() == data.labels[:2].tolist()
    assert data.test.inputs.columns["city"].tolist() == ["Ulm", "Bonn"]
    assert load_user_data({"all": Hub()}, "risk").test is None
    with pytest.raises(InputError, match=r"which of the splits a, b is to be trained on"):
        load_user_data({"a": Hub(), "b": Hub()}, "risk")


def make_samples(value):
    return [{"x": value(place), "label": place % 2, "user": f"u{place % 3}"} for place in range(6)]


def test_a_hub_data_set_of_images_or_vectors():
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    lists = Hub(make_samples(lambda place: pixels[place].tolist()), label=["cat", "dog"])
    data = load_user_data({"train": lists, "test": lists})
    assert (data.schema.kind, data.class_names) == ("image", ("cat", "dog"))
    assert np.array_equal(data.inputs[:, 0], pixels)
    assert np.array_equal(data.test.inputs, data.inputs)
    vectors = load_user_data(Hub(make_samples(lambda place: [place, 0.5])))
    assert (vectors.schema.kind, vectors.inputs.shape) == ("features", (6, 2))
    with pytest.raises(InputError, match=r"column 'x': arrays of different sizes"):
        load_user_data(Hub(make_samples(lambda place: [0] * (place + 1))))
    with pytest.raises(InputError, match=r"column 'x' holds an array .* leave column 'id' out"):
        load_user_data(Hub([row | {"id": place} for place, row in enumerate(make_samples(lambda place: [place]))]))
    with pytest.raises(InputError, match=r"rows 0, 1, 2, 3, 4, ... have none \(6 of 6\)"):
        load_user_data(Hub([row | {"label": -1} for row in make_samples(float)], label=["cat", "dog"]))
    wide = Hub(make_samples(lambda _: np.zeros((2, 3), np.uint8)), label=["cat", "dog"])
    with pytest.raises(InputError, match=r"images of shape \(1, 2, 3\), expected \(1, 2, 2\)"):
        load_user_data({"train": lists, "test": wide})


def test_the_real_package_if_it_is_there():
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    rows = make_samples(lambda place: image.fromarray(pixels[place]))
    features = datasets.Features(
        {"x": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"]), "user": datasets.Value("string")}
    )
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    made = datasets.Dataset.from_dict(columns, features=features)
    for given in (made, made.with_format("numpy"), datasets.DatasetDict(train=made)):
        data = load_user_data(given)
        assert (data.schema.kind, data.class_names, data.user_names) == ("image", ("cat", "dog"), ("u0", "u1", "u2"))
        assert np.array_equal(data.inputs[:, 0], pixels)
