"""The page around sections: one HTML file that needs nothing outside itself."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files

# No scripts, nothing from outside, whatever a record or a picture says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def write_page(title: str, kind: str, body: str, missing: Sequence[str], footer: str, more_style: str = "") -> str:
    """Return a page.

    Parameters
    ----------
    title, kind, footer : str
        Plain text; ``kind`` says what the page is a report of.
    body : str
        HTML.
    missing : sequence of str
        What could not be shown, said at the top.
    more_style : str
        CSS, after that of all reports.
    """
    style = "".join(files("codeward.report").joinpath(name).read_text("utf-8") for name in ("look.css", "report.css"))
    trouble = "".join(f'<p class="trouble">{escape(note)}</p>' for note in missing)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)} · codeward report</title>
<style>
{style}{more_style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to content</a>
<header><div class="bar"><p class="brand">codeward</p><p class="served">{escape(kind)}</p></div></header>
<main id="main" tabindex="-1">
<h1>{escape(title)}</h1>
{trouble}{body}</main>
<footer>{escape(footer)}</footer>
</body>
</html>
"""
