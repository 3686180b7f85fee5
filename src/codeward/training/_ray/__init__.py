"""Training on a Ray cluster: the same models, byte for byte, on other machines' cores."""

from codeward._ray_address import check_address
from codeward.training._ray._cluster import Cluster
from codeward.training._ray._driver import train_on_cluster
from codeward.training._ray._estimate import announce
from codeward.training._ray._task import Recipe

__all__ = ["Cluster", "Recipe", "announce", "check_address", "train_on_cluster"]
