"""Data sets, user splits, and the samples users hand in."""

from codeward.data._catalog import CATALOG, CatalogEntry
from codeward.data._datasets import DatasetPair, find_data_dir, load_dataset
from codeward.data._fetch import check_dataset, fetch_dataset
from codeward.data._samples import Overlay, Samples, render
from codeward.data._splits import (
    halve_test,
    hash_parts,
    plot_class_shares,
    split_dirichlet,
    split_groups,
    split_iid,
)

__all__ = [
    "CATALOG",
    "CatalogEntry",
    "DatasetPair",
    "Overlay",
    "Samples",
    "check_dataset",
    "fetch_dataset",
    "find_data_dir",
    "halve_test",
    "hash_parts",
    "load_dataset",
    "plot_class_shares",
    "render",
    "split_dirichlet",
    "split_groups",
    "split_iid",
]
