"""scikit-learn's own checks, on samples without groups: the pseudo-user path."""

import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from codeward.estimators import CodedClassifier

FAST = [
    CodedClassifier(LogisticRegression()),
    CodedClassifier(DecisionTreeClassifier(), decoder="consensus", validation_fraction=0.0),
]


@parametrize_with_checks(FAST)
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        CodedClassifier(DecisionTreeClassifier(), decoder="plurality", n_pseudo_users=5),
        CodedClassifier(HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=2), n_jobs=1),
    ]
)
def test_scikit_learn_finds_nothing_wrong_with_other_parts(estimator, check):
    check(estimator)
