"""Where the rows of a step are computed and written: one protocol, an implementation an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from thermocline.contract import Contract
from thermocline.errors import Permanent, ThermoclineError
from thermocline.transform.target_parts import Touched

if TYPE_CHECKING:
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.draft import Draft
    from thermocline.transform.inputs import Span
    from thermocline.transform.models import Model

R = TypeVar("R")
"""An engine's rows that are yet to be computed."""
R_co = TypeVar("R_co", covariant=True)


def cannot_compute(contract: Contract, error: BaseException) -> Permanent:
    """The error for a model whose query fails by itself, before its contract has a say."""
    return Permanent(
        f"{contract.table} cannot be computed: {first_line(error)}",
        wrong_model(contract),
    )


def wrong_model(contract: Contract) -> str:
    """What to do about a model that no engine can compute."""
    return f"Mend its model in models/{contract.layer}. Nothing was published."


def first_line(error: BaseException) -> str:
    """What an engine says first about a failure."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


class StepInputs(Protocol[R_co]):
    """What a step reads, as rows of its model."""

    def everything(self) -> R_co:
        """The model's rows computed from all rows of its sources."""
        ...

    def new_rows(self) -> R_co | None:
        """The model's rows computed from new input rows alone; None if that is not enough."""
        ...

    def touched(self, columns: Sequence[str], most: int, /) -> Touched | None:
        """Which parts of the target the changes can touch; None when more than `most`."""
        ...

    def every_part(self, columns: Sequence[str], most: int, /) -> Touched | None:
        """The parts that the model can have rows in; None when more than `most`, or unknown."""
        ...

    def only(self, touched: Touched, /) -> R_co:
        """The model's rows of the touched parts."""
        ...

    def some_parts(
        self, columns: Sequence[str], snapshot: int, share: float, /
    ) -> set[tuple[Any, ...]]:
        """A random share of the parts that the table at a snapshot or the model has rows in."""
        ...

    def differing(self, parts: Touched, snapshot: int, /) -> list[tuple[Any, ...]]:
        """Those of some parts whose rows at a snapshot are not what the model gives."""
        ...

    def close(self) -> None:
        """Let go of what was made to read them."""
        ...


class Executor(Protocol[R]):
    """An engine for steps."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What its library raises for a query that it cannot compute."""
        ...

    def failed(self, error: Exception, contract: Contract) -> ThermoclineError:
        """Such a failure in our words."""
        ...

    def inputs(self, model: Model, spans: Mapping[str, Span], /) -> StepInputs[R]:
        """What a step reads."""
        ...

    def write(
        self,
        rows: R,
        model: Model,
        draft: Draft,
        *,
        bookmark: Mapping[str, Any] | None,
        full: bool = False,
        touched: Touched | None = None,
    ) -> int:
        """Write a model's rows to the draft as its contract says, and say which snapshot it made.

        With `full` the rows are everything there is to know, and take the place of the table.
        `touched` are the partitions or keys that were computed: those without a row are emptied.
        """
        ...

    def replay(
        self,
        changes: ChangeSet,
        contract: Contract,
        draft: Draft,
        *,
        bookmark: Mapping[str, Any] | None,
    ) -> int:
        """Put rows that were inserted, changed and deleted elsewhere into a table of the draft."""
        ...

    def close(self) -> None:
        """Let go of what was opened for the run."""
        ...
