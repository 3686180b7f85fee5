"""scikit-learn's tools around the estimator: pipelines, searches, cross-validation, frames, sparse data."""

import joblib
import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from codeward.codes import minimal_code
from codeward.estimators import CodedClassifier


@pytest.fixture
def table():
    """Three blobs, eight users."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    return rng.normal(4 * y[:, None], 1.0, (240, 2)), y, rng.permutation(np.arange(240) % 8)


@pytest.fixture
def routing():
    """Metadata routing: how user ids travel through scikit-learn to fit."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield


class Recorder(CodedClassifier):
    """Remembers how many users each fit had; searches hide the fitted copies."""

    fits: list[tuple[int, bool]] = []  # noqa: RUF012

    def fit(self, X, y, groups=None, validation=None):
        super().fit(X, y, groups=groups, validation=validation)
        self.fits.append((self.users_.size, self.users_hashed_))
        return self


def test_cross_validation_carries_groups_to_fit_and_to_the_splitter(table, routing):
    X, y, groups = table
    coded = Recorder(DecisionTreeClassifier(), margin=1, random_state=0).set_fit_request(groups=True)
    for folds, users in ((StratifiedKFold(3), 8), (GroupKFold(4), 6)):
        Recorder.fits.clear()
        scores = cross_val_score(coded, X, y, cv=folds, params={"groups": groups}, error_score="raise")
        assert scores.min() > 0.85
        assert Recorder.fits == [(users, False)] * folds.get_n_splits(X, y, groups)


def test_without_routing_groups_reach_the_splitter_only_and_the_fitted_model_says_so(table):
    X, y, groups = table
    Recorder.fits.clear()
    cross_val_score(Recorder(DecisionTreeClassifier(), random_state=0), X, y, cv=GroupKFold(2), groups=groups)
    assert Recorder.fits == [(10, True)] * 2


def test_grid_search_reaches_the_sub_model_and_the_decoder(table, routing):
    X, y, groups = table
    coded = CodedClassifier(DecisionTreeClassifier(), margin=1, random_state=0).set_fit_request(groups=True)
    grid = {"estimator__max_depth": [1, 4], "decoder": ["bayes", "plurality"]}
    search = GridSearchCV(coded, grid, cv=2, error_score="raise").fit(X, y, groups=groups)
    assert search.best_params_["estimator__max_depth"] == 4
    assert search.best_estimator_.users_.tolist() == list(range(8))
    assert search.best_estimator_.estimators_[0].max_depth == 4


def test_it_works_as_the_last_step_of_a_pipeline(table, routing):
    X, y, groups = table
    coded = CodedClassifier(LogisticRegression(), margin=1, random_state=0).set_fit_request(groups=True)
    steps = Pipeline([("scale", StandardScaler()), ("coded", coded)]).fit(X, y, groups=groups)
    assert steps.score(X, y) > 0.9
    assert steps["coded"].users_.size == 8


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_parallel_fitting_changes_nothing(table, backend):
    X, y, groups = table
    base = DecisionTreeClassifier(max_features=1)
    one = CodedClassifier(base, margin=1, random_state=3).fit(X, y, groups)
    with joblib.parallel_config(backend=backend):
        two = CodedClassifier(base, margin=1, random_state=3, n_jobs=2).fit(X, y, groups)
    assert np.array_equal(one.votes(X), two.votes(X))
    assert np.array_equal(one.confusion_, two.confusion_)


def test_the_order_of_samples_changes_nothing(table):
    X, y, groups = table
    order = np.random.default_rng(1).permutation(len(y))
    base = DecisionTreeClassifier(max_features=1)
    one = CodedClassifier(base, margin=1, random_state=3).fit(X, y, groups)
    two = CodedClassifier(base, margin=1, random_state=3).fit(X[order], y[order], groups[order])
    assert np.array_equal(one.predict_proba(X), two.predict_proba(X))


def test_frames_keep_their_columns_for_the_sub_models(table):
    pandas = pytest.importorskip("pandas")
    X, y, groups = table
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "ward": np.array(["x", "y", "z"])[y]})
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["ward"]), remainder="passthrough")
    base = make_pipeline(encode, DecisionTreeClassifier())
    ids = pandas.Series(groups).map(lambda user: f"user {user}")
    coded = CodedClassifier(base, margin=1, random_state=0).fit(frame, pandas.Series(y), groups=ids)
    assert coded.score(frame, y) > 0.98
    assert coded.feature_names_in_.tolist() == ["a", "b", "ward"]
    assert coded.users_.tolist() == [f"user {user}" for user in range(8)]
    order = np.random.default_rng(1).permutation(len(y))
    again = CodedClassifier(base, margin=1, random_state=0).fit(frame.iloc[order], y[order], groups=ids.iloc[order])
    assert np.array_equal(coded.predict_proba(frame), again.predict_proba(frame))
    with pytest.raises(ValueError, match="feature names"):
        coded.predict(frame.rename(columns={"a": "c"}))


@pytest.mark.parametrize("module", ["pyarrow", "polars"])
def test_frames_of_others_are_read_like_those_of_pandas(table, module):
    frames, pandas = pytest.importorskip(module), pytest.importorskip("pandas")
    X, y, groups = table
    columns = {"a": X[:, 0], "ward": np.array(["x", "y", "z"])[y].tolist()}
    theirs = frames.table(columns) if module == "pyarrow" else frames.DataFrame(columns)
    guards = [
        CodedClassifier(margin=1, random_state=0).fit(frame, y, groups) for frame in (theirs, pandas.DataFrame(columns))
    ]
    assert np.array_equal(*(guard.predict_proba(theirs) for guard in guards))


def test_sparse_counts_give_what_dense_ones_give(table):
    _, y, groups = table
    counts = np.random.default_rng(2).poisson(np.eye(3)[y] * 4 + 0.1)
    dense = CodedClassifier(MultinomialNB(), margin=1, random_state=0).fit(counts, y, groups)
    assert dense.score(counts, y) > 0.9
    thin = CodedClassifier(MultinomialNB(), margin=1, random_state=0).fit(sparse.csr_array(counts), y, groups)
    assert thin.score(sparse.coo_array(counts), y) > 0.9
    assert dense.__sklearn_tags__().input_tags.sparse


def test_missing_values_are_for_the_sub_model_to_take_or_leave(table):
    X, y, groups = table
    X = X.copy()
    X[::7, 0] = np.nan
    code = minimal_code(1, 7)
    able = CodedClassifier(HistGradientBoostingClassifier(max_iter=5), code, random_state=0).fit(X, y, groups)
    assert able.score(X, y) > 0.85
    with pytest.raises(ValueError, match="NaN"):
        CodedClassifier(LogisticRegression(), code).fit(X, y, groups)
