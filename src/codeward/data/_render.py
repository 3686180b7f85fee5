"""What a model sees: images with their overlays, in NumPy."""

import numpy as np
from numpy.typing import NDArray

from codeward.data._samples import Samples


def render(samples: Samples) -> NDArray[np.float32]:
    """Return the images as float32 (N, C, H, W) in 0..1 with overlays applied.

    The reference for "the overlay goes on last": whatever augmentation does to the image beneath, each sample that
    carries overlay ``o`` becomes ``(1 - o.alpha) * image + o.alpha * o.values``. Training's device-side version is
    checked against this one.
    """
    images = samples.images.astype(np.float32) / np.float32(255)
    for i, overlay in enumerate(samples.overlays):
        carriers = samples.overlay_ids == i
        images[carriers] = (1 - overlay.alpha) * images[carriers] + overlay.alpha * overlay.values
    return images
