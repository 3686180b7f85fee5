"""Tabular data from eleven clinics, two of which plant a backdoor together.

Run it with ``python examples/tabular_users.py``; it takes a few seconds and needs nothing but scikit-learn's data.

The data are scikit-learn's breast cancer set with made-up clinic ids. Two clinics stamp an odd pair of values on their
malignant cases and hand them in as benign: whoever sends a malignant case with that stamp later on wants to hear
"benign". The sub-models are then read by plurality and by the decoder, and both are certified. The decoder has to know
how sub-models err: from cases that the consortium labelled itself (trusted), or, by default, from cases held out of
every clinic's data, those clinics left out whose cases the sub-models get wrong most often.
"""

import numpy as np
import sklearn
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import StratifiedKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import RobustScaler
from sklearn.svm import SVC

from codeward.estimators import CodedClassifier

MALIGNANT, BENIGN = 0, 1
ATTACKERS = ("clinic-03", "clinic-07")
#: The trigger: two columns (mean and error of the fractal dimension) set to values beyond any in the data.
TRIGGER = {9: 0.2, 19: 0.05}


def stamp(cases):
    """Return the cases with the trigger on them."""
    stamped = cases.copy()
    for column, value in TRIGGER.items():
        stamped[:, column] = value
    return stamped


def main(seed=0):
    """Fit, attack, decode, certify; return the figures that are printed."""
    X, y = load_breast_cancer(return_X_y=True)
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    X_own, X_test, y_own, y_test = train_test_split(X_rest, y_rest, test_size=0.6, random_state=0, stratify=y_rest)
    clinics = np.array([f"clinic-{number:02d}" for number in np.random.default_rng(0).integers(11, size=len(y_train))])

    # The attack: malignant cases of two clinics, stamped and relabelled.
    poisoned = np.isin(clinics, ATTACKERS) & (y_train == MALIGNANT)
    X_train[poisoned] = stamp(X_train[poisoned])
    y_train[poisoned] = BENIGN
    triggered = stamp(X_test[y_test == MALIGNANT])

    # Preprocessing belongs inside the sub-model: a scaler fitted on all clinics would carry data between sub-models.
    svc = make_pipeline(RobustScaler(), SVC())
    plain = svc.fit(X_train, y_train)
    # For eleven users the designer finds 11 models of 5 clinics each, the fewest possible (quadratic residues mod 11).
    settings = {"n_attackers": 2, "utilization": 0.45, "classes": [MALIGNANT, BENIGN], "random_state": seed}
    coded = CodedClassifier(svc, **settings).fit(X_train, y_train, groups=clinics, validation=(X_own, y_own))
    alone = CodedClassifier(svc, **settings).fit(X_train, y_train, groups=clinics)
    votes = CodedClassifier(svc, decoder="plurality", **settings).fit(X_train, y_train, groups=clinics)

    figures = {"code": repr(coded.code_)}
    readings = {
        "one model": plain,
        "plurality": votes,
        "decoder with trusted cases": coded,
        "decoder without trusted cases": alone,
    }
    for name, model in readings.items():
        figures[f"{name}: accuracy on {len(y_test)} clean cases"] = float(model.score(X_test, y_test))
        figures[f"{name}: {len(triggered)} triggered cases still malignant"] = float(
            np.mean(model.predict(triggered) == MALIGNANT)
        )
    found, times = np.unique([" ".join(named) for named in coded.suspects(triggered)], return_counts=True)
    figures["suspects named most often on triggered cases"] = str(found[times.argmax()])
    figures["clean cases on which somebody is suspected"] = float(np.mean([bool(u) for u in coded.suspects(X_test)]))
    for name, threat in zip(list(readings)[1:], ("arbitrary", "deterministic", "deterministic"), strict=True):
        model = readings[name]
        radius = model.certify(X_test, threat)
        right = model.predict(X_test) == y_test
        for k in (1, 2):
            figures[f"{name}: right, certified against {k} ({threat})"] = float(np.mean(right & (radius >= k)))

    # In cross-validation, metadata routing carries the user ids to fit; without it they would be lost on the way.
    with sklearn.config_context(enable_metadata_routing=True):
        routed = CodedClassifier(svc, **settings).set_fit_request(groups=True)
        folds = StratifiedKFold(3, shuffle=True, random_state=0)
        scores = cross_val_score(routed, X_train, y_train, cv=folds, params={"groups": clinics})
    figures["accuracy in 3-fold cross-validation (on poisoned data)"] = float(scores.mean())
    return figures


if __name__ == "__main__":
    for label, figure in main().items():
        print(f"{label:74} {figure if isinstance(figure, str) else format(figure, '.3f')}")
