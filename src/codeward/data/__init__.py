"""Data sets, user splits, and the samples users hand in."""

from codeward.data._dataset_files import CATALOG, CatalogEntry
from codeward.data._datasets import DatasetPair, check_dataset, fetch_dataset, find_data_dir, load_dataset
from codeward.data._image_folder import read_image
from codeward.data._samples import Overlay, Samples, UserData, render, sort_names
from codeward.data._schema import Column, Schema
from codeward.data._splits import (
    count_classes,
    halve_test,
    hash_parts,
    plot_class_shares,
    split_dirichlet,
    split_groups,
    split_iid,
)
from codeward.data._table import InputTable, arrange_inputs, name_values, read_csv_text, read_records
from codeward.data._user_sources import USERS, load_user_data, read_inputs

__all__ = [
    "CATALOG",
    "USERS",
    "CatalogEntry",
    "Column",
    "DatasetPair",
    "InputTable",
    "Overlay",
    "Samples",
    "Schema",
    "UserData",
    "arrange_inputs",
    "check_dataset",
    "count_classes",
    "fetch_dataset",
    "find_data_dir",
    "halve_test",
    "hash_parts",
    "load_dataset",
    "load_user_data",
    "name_values",
    "plot_class_shares",
    "read_csv_text",
    "read_image",
    "read_inputs",
    "read_records",
    "render",
    "sort_names",
    "split_dirichlet",
    "split_groups",
    "split_iid",
]
