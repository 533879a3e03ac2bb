"""Parse Thermocline's settings in `customProperties`; properties of other tools are ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from thermocline.contract.problems import DocumentPath, ProblemReport, did_you_mean, quote

if TYPE_CHECKING:
    from open_data_contract_standard.model import CustomProperty

TABLE_SETTINGS: tuple[str, ...] = (
    "write", "orderBy", "deleteWhen", "updates", "incremental", "drift", "dropped", "hot", "sortBy",
    "history",
)  # fmt: skip
COLUMN_SETTINGS: tuple[str, ...] = ("transform", "renamedFrom", "loadTime")


class CustomSetting(NamedTuple):
    """A value and its position in the document."""

    value: Any
    at: DocumentPath


def read_settings(
    properties: Sequence[CustomProperty] | None,
    at: DocumentPath,
    owner: str,
    level: str,
    report: ProblemReport,
) -> dict[str, CustomSetting]:
    """Return Thermocline's settings of a table or a column (`level`).

    A name that is close to one of them is a problem, because it would otherwise have no effect.
    """
    ours = COLUMN_SETTINGS if level == "column" else TABLE_SETTINGS
    others = TABLE_SETTINGS if level == "column" else COLUMN_SETTINGS
    settings: dict[str, CustomSetting] = {}
    for index, entry in enumerate(properties or ()):
        place = (*at, "customProperties", index)
        name = entry.property
        if name is None:
            report.add(place, owner, "the custom property has no name", "write property: …")
        elif entry.vendor not in (None, "thermocline"):
            continue
        elif name in settings:
            report.add(place, owner, f"{name} is set twice")
        elif name in ours:
            settings[name] = CustomSetting(entry.value, (*place, "value"))
        elif name in others:
            other = "table" if level == "column" else "column"
            report.add(place, owner, f"{name} is a setting of a {other}, not of a {level}")
        else:
            hint = _suggest_setting(name, ours)
            if hint:
                report.add(place, owner, f"unknown setting {quote(name)}", hint)
    return settings


def _suggest_setting(name: str, ours: Sequence[str]) -> str:
    # Strict, because other tools have their own names: "host" is not "hot".
    long_enough = [word for word in ours if len(word) > 3 or word.lower() == name.lower()]
    return did_you_mean(name, long_enough, cutoff=0.8)
