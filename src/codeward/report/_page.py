"""Pages from templates: one HTML file that needs nothing outside itself, every text escaped."""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


@cache
def find_templates(package: str = "codeward.report") -> Environment:
    """Return the templates of a package, over those of reports; what is written into them is escaped."""
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("codeward.report")])
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, optimized=True
    )
    made.globals["read_style"] = read_style
    return made


def write_page(template: str, package: str = "codeward.report", **content: Any) -> str:
    """Return a page: a template that extends ``page.html``, with its content.

    Guarantees: text is escaped, the page runs no script and loads nothing (its content security policy says so, too),
    the same content gives the same bytes.

    Parameters
    ----------
    template : str
        Name of the template.
    package : str
        The package that has it.
    **content
        What the template shows; ``title`` and ``footer`` are of every page.

    Examples
    --------
    >>> page = write_page("page.html", title="<b>", footer="")
    >>> "<h1>&lt;b&gt;</h1>" in page
    True
    """
    return find_templates(package).get_template(template).render(**content)


def read_style(name: str) -> str:
    """Return a style sheet of reports."""
    return files("codeward.report").joinpath(name).read_text("utf-8")
