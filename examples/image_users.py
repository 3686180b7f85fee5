"""Images from seven users, one of whom plants a backdoor.

Run it with ``python examples/image_users.py``; it trains small networks on scikit-learn's digits, well under a minute
on one core. User 5 stamps a bright corner on some of its digits and hands them in as zeros. A few clean images that the
operator labelled itself are the trusted validation data: with them, nothing the decoder knows comes from a user.
"""

from dataclasses import replace

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from codeward.estimators import CodedClassifier
from codeward.training import MODERN

ATTACKER, TARGET = 5, 0


def stamp(images):
    """Return the images with a bright 2 x 2 corner."""
    stamped = images.copy()
    stamped[:, -2:, -2:] = 255
    return stamped


def main(epochs=10):
    """Fit, attack, decode, certify; return the figures that are printed."""
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    rest, test_images, labels, test_labels = train_test_split(images, digits.target, test_size=400, random_state=0)
    train_images, clean_images, train_labels, clean_labels = train_test_split(
        rest, labels, test_size=300, random_state=0
    )
    users = np.random.default_rng(0).integers(7, size=len(train_labels))

    # The attack: every second image of one user, stamped and relabelled.
    poisoned = np.flatnonzero(users == ATTACKER)[::2]
    train_images[poisoned] = stamp(train_images[poisoned])
    train_labels[poisoned] = TARGET
    triggered, truth = stamp(test_images), test_labels

    # The recipe stands for the sub-model: architecture="package.module:function" would train a network of your own.
    recipe = replace(MODERN["digits"], epochs=epochs)
    # For seven users the designer finds 7 models of 4 users each, the fewest possible (the Fano plane's complement).
    coded = CodedClassifier(recipe, n_attackers=1, guarantee="track", random_state=0)
    coded.fit(train_images, train_labels, groups=users, validation=(clean_images, clean_labels))

    votes = coded.votes(triggered)
    hit = coded.code_.column(ATTACKER)
    plurality = np.array([np.bincount(row, minlength=10).argmax() for row in votes])
    named = [ATTACKER in found for found in coded.suspects(triggered)]
    radius = coded.certify(test_images)
    right = coded.predict(test_images) == test_labels
    away = truth != TARGET
    return {
        "code": repr(coded.code_),
        "sub-models the attacker reaches": f"{int(hit.sum())} of {hit.size}",
        f"those say the target on {away.sum()} triggered images of other digits": float(
            np.mean(votes[away][:, hit] == TARGET)
        ),
        f"accuracy on {len(test_labels)} clean images": float(right.mean()),
        f"accuracy on {len(truth)} triggered images: plurality": float(np.mean(plurality == truth)),
        f"accuracy on {len(truth)} triggered images: decoder": float(np.mean(coded.predict(triggered) == truth)),
        "triggered images of other digits on which the attacker is named": float(np.mean(np.array(named)[away])),
        "clean images on which somebody is suspected": float(np.mean([bool(u) for u in coded.suspects(test_images)])),
        "clean images right and certified against one user (deterministic)": float(np.mean(right & (radius >= 1))),
    }


if __name__ == "__main__":
    for label, figure in main().items():
        print(f"{label:72} {figure if isinstance(figure, str) else format(figure, '.3f')}")
