"""A run on disk: its configuration, its folder, its cells, their records. Nothing here trains or imports torch.

A *run* is a folder (`RunFolder`): configuration, code, and a *cell* (`Cell`) for every repeat and number of attackers.
A cell has vote files, a JSON file that says what they are and which models gave them, and a record with figures. All
that writes runs (``run``, ``reproduce``, ``federate``, ``revoke``) and all that reads them (``report``, ``serve``,
``ledger``) goes through this package; nobody else spells a path.

>>> import tempfile
>>> import numpy as np
>>> from codeward.decoding import VoteSet
>>> from codeward.runs import Cell, RunConfig, RunFolder, describe_machine, list_cells, rate, share
>>> config = RunConfig(users=12, code={"name": "d"}, attack={"attackers": [0]}, decoder={"name": "bayes"})
>>> folder = RunFolder(tempfile.mkdtemp())
>>> code = folder.open(config)  # finds the code; writes config.yaml and code.json
>>> says = VoteSet(np.tile([[0], [1], [1]], code.n_models), labels=np.array([0, 1, 1]))
>>> about = {"classes": 2, "training": {}, "groups": [], **describe_machine("cpu")}
>>> cell = Cell(folder, repeat=0, n_attackers=0).save_votes({"validation": says, "clean": says}, about)
>>> cell.decoder().decode(cell.clean.votes).labels.tolist()
[0, 1, 1]
>>> figures = {"clean": {"all": {"bayes": share(3, 3)}}, "groups": []}
>>> _ = cell.save_record(config, {"code_digest": code.digest, "training": {}, "figures": figures})
>>> [(cell.name, rate(cell.record["figures"]["clean"]["all"]["bayes"])) for cell in list_cells(folder)]
[('repeat0-attackers0', 1.0)]

Names below are imported on first use: a mistake in a configuration is told before anything heavy is loaded.
"""

from typing import TYPE_CHECKING

from codeward._importing import attach

__all__ = [
    "ALARM",
    "CODE_FILE",
    "CONFIG_FILE",
    "FRACTION",
    "FRACTIONS",
    "AttackSection",
    "Card",
    "CardCurve",
    "Cell",
    "CodeSection",
    "DecoderSection",
    "FederatedConfig",
    "FederatedSection",
    "Outlook",
    "Revocation",
    "RunConfig",
    "RunFolder",
    "SimulatedAttack",
    "SplitSection",
    "StatedGuarantee",
    "TrainConfig",
    "TrainSection",
    "TrainingSection",
    "certify_clean",
    "certify_kept",
    "count_votes",
    "count_words",
    "decoder_figures",
    "describe_detection",
    "describe_machine",
    "draw_accuracy",
    "draw_input",
    "explain_input",
    "find_cell",
    "find_code",
    "foresee_revocation",
    "format_lines",
    "is_run",
    "is_superseded",
    "list_cells",
    "list_class_names",
    "list_inner_runs",
    "load_config",
    "load_federated_config",
    "load_record",
    "load_records",
    "load_revocation",
    "make_card",
    "measure_consensus",
    "name_triggered",
    "observe",
    "pack_record_folder",
    "parse_lines",
    "parse_yaml",
    "pick_input",
    "rate",
    "read_lines",
    "read_record_folder",
    "read_stored",
    "record_cell",
    "round_scores",
    "save_record",
    "say_planted",
    "say_uncovered",
    "share",
    "state_guarantees",
    "sum_up_guarantees",
    "write_lines",
]

if TYPE_CHECKING:
    from codeward.runs._cell import Cell
    from codeward.runs._certificate_card import Card, CardCurve, make_card
    from codeward.runs._clean_certificates import certify_clean, certify_kept, say_planted, say_uncovered
    from codeward.runs._config import (
        FederatedConfig,
        RunConfig,
        TrainConfig,
        load_config,
        load_federated_config,
        parse_yaml,
        read_stored,
    )
    from codeward.runs._counting import count_votes, measure_consensus, record_cell
    from codeward.runs._listing import (
        draw_accuracy,
        draw_input,
        explain_input,
        find_cell,
        list_cells,
        list_class_names,
        observe,
        pick_input,
        round_scores,
    )
    from codeward.runs._records import (
        ALARM,
        CODE_FILE,
        CONFIG_FILE,
        SimulatedAttack,
        decoder_figures,
        describe_detection,
        describe_machine,
        format_lines,
        is_run,
        list_inner_runs,
        load_record,
        load_records,
        pack_record_folder,
        parse_lines,
        rate,
        read_lines,
        read_record_folder,
        save_record,
        share,
        write_lines,
    )
    from codeward.runs._revocation import Outlook, Revocation, foresee_revocation, is_superseded, load_revocation
    from codeward.runs._run_folder import RunFolder, find_code, name_triggered
    from codeward.runs._sections import (
        FRACTION,
        FRACTIONS,
        AttackSection,
        CodeSection,
        DecoderSection,
        FederatedSection,
        SplitSection,
        TrainingSection,
        TrainSection,
    )
    from codeward.runs._stated_guarantees import StatedGuarantee, count_words, state_guarantees, sum_up_guarantees

__getattr__, __dir__ = attach(__name__)
