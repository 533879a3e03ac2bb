"""A second look at parts that an incremental step left alone: are they still what they would be?

With `transform.verify_share` a random share of the untouched parts is recomputed from all rows of
the sources before anything is published, and held against the table. Touched parts are found by
rules; this notices a rule that is wrong, and whatever else made the table differ from its model.
"""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING, Any

from thermocline.errors import Permanent
from thermocline.transform.target_parts import Touched, touched_columns

if TYPE_CHECKING:
    from thermocline.lake.draft import Draft
    from thermocline.transform.executor import StepInputs
    from thermocline.transform.models import Model

_NAMED = 3


class NotReproduced(Permanent):
    """A part that no change touches is not what its model gives for it."""

    code = "not-reproduced"


def verify(inputs: StepInputs[Any], model: Model, draft: Draft, touched: Touched) -> None:
    """Recompute a random share of the parts beside the touched ones; raise if one differs."""
    share = draft.lake.settings.transform.verify_share
    if share <= 0:
        return
    columns, head = touched_columns(model), draft.head(model.table)
    chosen = inputs.some_parts(columns, head, share) - set(touched.values)
    differing = inputs.differing(Touched.of(columns, chosen), head) if chosen else []
    if not differing:
        return
    first = ", ".join(str(v[0] if len(v) == 1 else v) for v in differing[:_NAMED])
    raise NotReproduced(
        f"{model.table}: {len(differing)} of {len(chosen)} recomputed parts that no change touched"
        f" are not what models/{model.contract.layer}/{model.path.name} gives: {first}.",
        f"Nothing was published. Run thermo run --full-refresh --select {model.table}.",
        table=model.table,
        parts=[[str(each) for each in value] for value in differing],
    )


def some_of(values: set[tuple[Any, ...]], share: float) -> set[tuple[Any, ...]]:
    """A random share of values, at least one of them."""
    count = max(1, round(share * len(values))) if values else 0
    return set(SystemRandom().sample(sorted(values, key=repr), count))
