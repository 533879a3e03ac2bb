"""Verify parts that an incremental step did not touch.

With `transform.verify_share`, a random share of the untouched parts is recomputed from all rows of
the sources before anything is published, and compared with the table. Rules find the touched
parts; the verification detects a wrong rule, and any other cause of a difference.
"""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING, Any

from thermocline.errors import Permanent
from thermocline.transform.target_parts import TouchedParts, part_columns

if TYPE_CHECKING:
    from thermocline.lake.draft import Draft
    from thermocline.transform.executor import StepInputs
    from thermocline.transform.models import Model

_MAX_NAMED = 3


class NotReproduced(Permanent):
    """A part that no change touches differs from its model's rows."""

    code = "not-reproduced"


def verify_untouched_parts(
    inputs: StepInputs[Any], model: Model, draft: Draft, touched: TouchedParts
) -> None:
    """Recompute a random share of the untouched parts; raise NotReproduced if one differs."""
    share = draft.lake.settings.transform.verify_share
    if share <= 0:
        return
    columns, head = part_columns(model), draft.head(model.table)
    chosen = inputs.sample_parts(columns, head, share) - set(touched.values)
    differing = inputs.find_differing(TouchedParts.of(columns, chosen), head) if chosen else []
    if not differing:
        return
    first = ", ".join(str(v[0] if len(v) == 1 else v) for v in differing[:_MAX_NAMED])
    raise NotReproduced(
        f"{model.table}: {len(differing)} of {len(chosen)} recomputed parts that no change touched"
        f" differ from what models/{model.contract.layer}/{model.path.name} returns: {first}.",
        f"Nothing was published. Run thermo run --full-refresh --select {model.table}.",
        table=model.table,
        parts=[[str(each) for each in value] for value in differing],
    )


def sample_values(values: set[tuple[Any, ...]], share: float) -> set[tuple[Any, ...]]:
    """Return a random share of values, at least one."""
    count = max(1, round(share * len(values))) if values else 0
    return set(SystemRandom().sample(sorted(values, key=repr), count))
