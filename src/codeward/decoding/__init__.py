"""From votes to a verdict: vote models, decoders, detection, tracking, vote files. Imports torch only when asked to."""

from codeward.decoding._assumptions import (
    Assumptions,
    ConfusionModel,
    VoteModel,
    VoteSet,
    check_votes,
    count_confusion,
    estimate_confusion,
    pool_counts,
    smooth_confusion,
    uniform_prior,
)
from codeward.decoding._attacker_sets import tracking_score
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import (
    ALARM,
    NO_VERDICT,
    Decoded,
    Decoder,
    RocCurve,
    VerdictMemory,
    alarm_threshold,
    distinct_rows,
    roc_curve,
)
from codeward.decoding._explained import ExplainedVerdict, explain_verdict
from codeward.decoding._factory import DECODERS, choose_fitted, conformal_threshold, make_decoder, promise_rate
from codeward.decoding._nearest import ClassShares, NearestDecoder
from codeward.decoding._pooling import (
    EvidenceDecoder,
    Pooled,
    count_apart,
    count_spare,
    decode_batch,
    name_attackers,
    pool_evidence,
)
from codeward.decoding._runoff import AppealDecoder, RunOffCounts, RunOffDecoder, check_scores
from codeward.decoding._two_groups import TwoGroupDecoder
from codeward.decoding._vote_counting import ConsensusDecoder, PluralityDecoder
from codeward.decoding._vote_files import VoteReader, load_scores, load_votes, save_scores, save_votes

__all__ = [
    "ALARM",
    "DECODERS",
    "NO_VERDICT",
    "AppealDecoder",
    "Assumptions",
    "BayesDecoder",
    "ClassShares",
    "ConfusionModel",
    "ConsensusDecoder",
    "Decoded",
    "Decoder",
    "EvidenceDecoder",
    "ExplainedVerdict",
    "NearestDecoder",
    "PluralityDecoder",
    "Pooled",
    "RocCurve",
    "RunOffCounts",
    "RunOffDecoder",
    "TwoGroupDecoder",
    "VerdictMemory",
    "VoteModel",
    "VoteReader",
    "VoteSet",
    "alarm_threshold",
    "check_scores",
    "check_votes",
    "choose_fitted",
    "conformal_threshold",
    "count_apart",
    "count_confusion",
    "count_spare",
    "decode_batch",
    "distinct_rows",
    "estimate_confusion",
    "explain_verdict",
    "load_scores",
    "load_votes",
    "make_decoder",
    "name_attackers",
    "pool_counts",
    "pool_evidence",
    "promise_rate",
    "roc_curve",
    "save_scores",
    "save_votes",
    "smooth_confusion",
    "tracking_score",
    "uniform_prior",
]
