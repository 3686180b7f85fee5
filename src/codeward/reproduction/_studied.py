"""Figures of studies, side by side."""

from collections.abc import Sequence

from codeward.reproduction._grid_folder import GridRun, Record


def list_common(run: GridRun, size: int, part: str, names: Sequence[str]) -> dict[str, list[Record]]:
    """Return what studies say of every name, on the repeats that all names have which have any.

    Costly decoders are studied on a few repeats only; on others' repeats, other attackers are drawn, and the figures
    would differ for that alone.

    Parameters
    ----------
    run : GridRun
    size : int
        Number of attackers.
    part : {"decoders", "tracking", "detection"}
    names : sequence of str
    """
    studies = [study for study in run.studies if study["n_attackers"] == size]
    repeats = [{study["repeat"] for study in studies if name in study.get(part, {})} for name in names]
    known = [found for found in repeats if found]
    common = set.intersection(*known) if known else set()
    chosen = [study[part] for study in studies if study["repeat"] in common and part in study]
    return {name: [figures[name] for figures in chosen if name in figures] for name in names}
