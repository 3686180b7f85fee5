"""Data sets, user splits, and the samples users hand in."""

from codeward.data._datasets import DatasetPair, load_dataset
from codeward.data._fetch import fetch_dataset
from codeward.data._plots import plot_class_shares
from codeward.data._registry import REGISTRY, DataFile, DatasetRecord, Layout
from codeward.data._render import render
from codeward.data._samples import Overlay, Samples
from codeward.data._splits import count_classes, halve_test, split_dirichlet, split_groups, split_iid
from codeward.data._verify import find_layout, resolve_data_dir

__all__ = [
    "REGISTRY",
    "DataFile",
    "DatasetPair",
    "DatasetRecord",
    "Layout",
    "Overlay",
    "Samples",
    "count_classes",
    "fetch_dataset",
    "find_layout",
    "halve_test",
    "load_dataset",
    "plot_class_shares",
    "render",
    "resolve_data_dir",
    "split_dirichlet",
    "split_groups",
    "split_iid",
]
