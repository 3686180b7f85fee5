"""The documentation site: ``make docs`` builds it, without network, every warning an error."""

import os
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

from codeward import __version__

# Pages that are executed must not depend on the machine's number of cores or on a display.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "2")

project = "codeward"
author = "The codeward maintainers"
copyright = "the codeward maintainers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/README.rst", "sg_execution_times.rst"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Most blocks without a language are what a command prints.
highlight_language = "none"
# Formulas are MathML, made here: a reader without network sees them, too.
html_math_renderer = "mathml"
suppress_warnings = ["config.cache", "myst.strikethrough"]

# Single backticks in docstrings are names; most of them are clear without a link.
default_role = "code"
autodoc_typehints = "none"
# scikit-learn adds them to every estimator, with references to its own site.
autodoc_default_options = {"exclude-members": "set_fit_request, set_score_request"}
autodoc_member_order = "bysource"
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "codeward"
html_static_path = ["_static"]
html_css_files = ["codeward.css"]
html_show_sourcelink = False
# Pages without pages below them: their sidebar would be empty.
html_sidebars = {page: [] for page in ("index", "start", "concepts", "comparison")}
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 10,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "ignore_pattern": "image_users|tabular_users|real_users|__init__",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 0,
    "write_computation_times": False,
}


def _write_formula(translator, node):  # type: ignore[no-untyped-def]
    """Write a formula as MathML; what docutils cannot read is a warning, which is an error of the build."""
    block = isinstance(node, nodes.math_block)
    try:
        formula = tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), error, location=node)
        formula = translator.encode(node.astext())
    translator.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def _link_repository(app, docname, source):  # type: ignore[no-untyped-def]
    """Links to files outside docs/ work in the repository; on the site they become names, and NOTATION.md a page."""
    text = source[0].replace("(../NOTATION.md)", "(/notation.md)")
    source[0] = re.sub(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)[^)]*\)", r"\1 (`\2`)", text)


def setup(app):  # type: ignore[no-untyped-def]
    """Register the rewriting of links and the writing of formulas."""
    app.add_html_math_renderer("mathml", (_write_formula, None), (_write_formula, None))
    app.connect("source-read", _link_repository)
