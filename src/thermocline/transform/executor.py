"""The protocol of the engines that compute and write a step's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from thermocline.contract import Contract
from thermocline.errors import Permanent, ThermoclineError, first_line
from thermocline.transform.target_parts import TouchedParts

if TYPE_CHECKING:
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.draft import Draft
    from thermocline.transform.inputs import SourceSpan
    from thermocline.transform.models import Model

R = TypeVar("R")
"""An engine's lazy rows."""
R_co = TypeVar("R_co", covariant=True)
Bookmark = Mapping[str, Any]
"""What a commit records: the snapshots of the sources, and the model that computed the rows."""


@dataclass(frozen=True)
class StepWrite:
    """Where a step writes its rows, and what they are.

    With `full`, the rows replace the whole table. `touched` are the partitions or keys that were
    computed; those without a row are emptied.
    """

    model: Model
    draft: Draft
    bookmark: Bookmark | None
    full: bool = False
    touched: TouchedParts | None = None


def build_compute_error(contract: Contract, error: BaseException) -> Permanent:
    """Build the error for a model whose query fails, before its contract is checked."""
    return Permanent(
        f"{contract.table} cannot be computed: {first_line(error)}",
        advise_model_fix(contract),
    )


def advise_model_fix(contract: Contract) -> str:
    """Return the next step for a model that no engine can compute."""
    return f"Fix its model in models/{contract.layer}. Nothing was published."


class StepInputs(Protocol[R_co]):
    """The input of a step, as rows of its model."""

    def read_all(self) -> R_co:
        """Return the model's rows, computed from all rows of its sources."""
        ...

    def read_new(self) -> R_co | None:
        """Return the model's rows, computed from new input rows; None if they do not suffice."""
        ...

    def find_touched(self, columns: Sequence[str], most: int, /) -> TouchedParts | None:
        """Return the parts of the target that changes can touch; None if more than `most`."""
        ...

    def find_all_parts(self, columns: Sequence[str], most: int, /) -> TouchedParts | None:
        """Return the parts that the model can have rows in; None if unknown or more than `most`."""
        ...

    def read_parts(self, touched: TouchedParts, /) -> R_co:
        """Return the model's rows of the touched parts."""
        ...

    def sample_parts(
        self, columns: Sequence[str], snapshot: int, share: float, /
    ) -> set[tuple[Any, ...]]:
        """Return a random share of the parts with rows in the table at a snapshot or the model."""
        ...

    def find_differing(self, parts: TouchedParts, snapshot: int, /) -> list[tuple[Any, ...]]:
        """Return those parts whose rows at a snapshot differ from the model's rows."""
        ...

    def close(self) -> None:
        """Release the resources that were created for reading."""
        ...


class Executor(Protocol[R]):
    """An engine that computes and writes steps."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """The exceptions that its library raises for a query that it cannot compute."""
        ...

    def explain_failure(self, error: Exception, contract: Contract) -> ThermoclineError:
        """Return the error for such a failure."""
        ...

    def open_inputs(self, model: Model, spans: Mapping[str, SourceSpan], /) -> StepInputs[R]:
        """Open the input of a step."""
        ...

    def write(self, rows: R, target: StepWrite, /) -> int:
        """Write a model's rows as its contract says, and return the new snapshot."""
        ...

    def apply_changes(
        self, changes: ChangeSet, contract: Contract, draft: Draft, bookmark: Bookmark | None, /
    ) -> int:
        """Apply inserted, updated and deleted rows to a table of the draft."""
        ...

    def close(self) -> None:
        """Release what was opened for the run."""
        ...
