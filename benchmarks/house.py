"""What the package weighs and how its parts hang together: counts, import times, and a drawing made from the imports.

    python -m benchmarks.house            # print the figures
    python -m benchmarks.house --write    # and write docs/development/architecture.svg

The drawing has one box a package, with an arrow to every package it imports (lazy
imports included); arrows that another path implies are left out.
"""

import argparse
import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "codeward"
#: Rows of the drawing, from the top; what proves stands on the left, what trains on the right. No name: no box.
LAYERS = (
    ("cli",),
    ("serve", "reproduction"),
    ("report", "experiments"),
    ("estimators", "federated"),
    ("runs", "training", "attacks"),
    ("certificates", ""),
    ("decoding", "data"),
    ("codes",),
)
WIDTH, HEIGHT, GAP, LEFT = 150, 30, 26, 20


def list_modules() -> dict[str, list[Path]]:
    """Return the modules of every package."""
    found = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).with_suffix("").parts[0]
        found[name if any(name in layer for layer in LAYERS) else "(top)"].append(file)
    return dict(found)


def find_imports(modules: dict[str, list[Path]]) -> dict[str, set[str]]:
    """Return the packages that every package imports."""
    known = {package for layer in LAYERS for package in layer if package}
    edges: dict[str, set[str]] = {package: set() for package in known}
    for package in known:
        for file in modules[package]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("codeward."):
                    other = node.module.split(".")[1]
                    if other in known and other != package:
                        edges[package].add(other)
    return edges


def reduce_edges(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out what another path implies."""

    def reach(start: str, banned: tuple[str, str]) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            here = todo.pop()
            for other in edges[here]:
                if (here, other) != banned and other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    return {a: {b for b in targets if b not in reach(a, (a, b))} for a, targets in edges.items()}


def draw(edges: dict[str, set[str]], modules: dict[str, list[Path]]) -> str:
    """Return the drawing as SVG."""
    place = {}
    for row, layer in enumerate(LAYERS):
        for column, package in enumerate(layer):
            left = LEFT + max(2 - len(layer), 0) * (WIDTH + 60) / 2
            place[package] = (left + column * (WIDTH + 60), 10 + row * (HEIGHT + GAP))
    place.pop("")
    height = 20 + len(LAYERS) * (HEIGHT + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * WIDTH + 160} {height}" font-family="sans-serif" '
        'font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>',
    ]
    for package, targets in sorted(edges.items()):
        x, y = place[package]
        for other in sorted(targets):
            to_x, to_y = place[other]
            lines.append(
                f'<line x1="{x + WIDTH / 2:g}" y1="{y + HEIGHT}" x2="{to_x + WIDTH / 2:g}" y2="{to_y}" stroke="#667" '
                'marker-end="url(#tip)"/>'
            )
    for package, (x, y) in place.items():
        lines.append(f'<rect x="{x:g}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#eef2f7" stroke="#334"/>')
        text = f"{package} ({len(modules[package])})"
        lines.append(f'<text x="{x + WIDTH / 2:g}" y="{y + 19}" text-anchor="middle">{text}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def count_code(file: Path) -> int:
    """Return the lines of a module that are neither blank nor comments nor docstrings."""
    text = file.read_text(encoding="utf-8")
    left_out = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()[:1] in ("", "#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(text.splitlines()) - len(left_out)


def time_import(statement: str) -> float:
    """Return the processor seconds of the best of three fresh interpreters that run a statement."""
    best = float("inf")
    for _ in range(3):
        program = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
        best = min(best, float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout))
    return best


def main() -> None:
    """Print the figures; draw when asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/development/architecture.svg")
    options = parser.parse_args()
    modules = list_modules()
    print("| package | modules | lines | of code |\n|---|---|---|---|")
    for package, files in (*modules.items(), ("all", sorted(SOURCE.rglob("*.py")))):
        lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
        print(f"| {package} | {len(files)} | {lines:,} | {sum(map(count_code, files)):,} |")
    print()
    results = [file for file in (ROOT / "results").rglob("*") if file.is_file()]
    print(f"results: {len(results)} files, {sum(file.stat().st_size for file in results) / 1e6:.1f} MB")
    for statement in ("import codeward", "import codeward.report", "import codeward.cli"):
        print(f"{statement}: {time_import(statement):.2f} s of processor time")
    shown = "import sys, codeward.cli; sys.stdout = open('/dev/null', 'w'); codeward.cli.main(['--help'])"
    print(f"codeward --help: {time_import(shown + '; sys.stdout = sys.__stdout__'):.2f} s of processor time")
    if options.write:
        drawing = draw(reduce_edges(find_imports(modules)), modules)
        (ROOT / "docs" / "development" / "architecture.svg").write_text(drawing)


if __name__ == "__main__":
    main()
