"""The order of models by what they read, and the part of it that somebody selects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from thermocline.errors import BadInput
from thermocline.transform.models import Model

_TERM = re.compile(r"(?P<up>\d*\+)?(?P<what>[^+]+)(?P<down>\+\d*)?")


def ordered(models: Mapping[str, Model]) -> list[Model]:
    """All models, each after the models it reads. A cycle is an error that names it."""
    done: dict[str, Model] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done or name not in models:
            return
        if name in path:
            cycle = " → ".join([*path[path.index(name) :], name])
            raise BadInput(f"Models read each other in a circle: {cycle}.", "Break the circle.")
        path.append(name)
        for source in sorted(models[name].sources):
            visit(source)
        path.pop()
        done[name] = models[name]

    for name in sorted(models):
        visit(name)
    return list(done.values())


def select(models: Mapping[str, Model], terms: Sequence[str]) -> set[str]:
    """The models that dbt's graph syntax selects; all of them when no term is given.

    A term is a table, a bare name, a pattern with `*`, `tag:X` or `layer:X`; `+` before it adds
    what it reads, `+` after it what reads it (with a number: so many steps). Terms joined by a
    comma must all hold; several terms add up.
    """
    if not terms:
        return set(models)
    chosen: set[str] = set()
    for term in (part for text in terms for part in text.split()):
        parts = [_select_one(models, part) for part in term.split(",")]
        chosen |= set.intersection(*parts)
    return chosen


def _select_one(models: Mapping[str, Model], term: str) -> set[str]:
    found = _TERM.fullmatch(term)
    if found is None:
        raise BadInput(f"{term!r} is not a selection.", "Write +model+, tag:name or layer:name.")
    matched = {name for name, model in models.items() if _matches(model, found["what"])}
    if not matched:
        raise BadInput(
            f"No model matches {found['what']!r}.", f"There are: {', '.join(sorted(models))}."
        )
    result = set(matched)
    if found["up"]:
        result |= _reach(matched, _parents(models), found["up"].rstrip("+"))
    if found["down"]:
        result |= _reach(matched, _children(models), found["down"].lstrip("+"))
    return result


def _matches(model: Model, what: str) -> bool:
    method, _, value = what.rpartition(":")
    if method == "tag":
        return value in model.tags
    if method == "layer":
        return model.contract.layer == value
    if method:
        raise BadInput(f"{method}: is not a way to select.", "Use tag: or layer:.")
    pattern = re.escape(what).replace(r"\*", ".*")
    return bool(re.fullmatch(pattern, model.table) or re.fullmatch(pattern, model.contract.name))


def _reach(start: Iterable[str], edges: Mapping[str, set[str]], steps: str) -> set[str]:
    left = int(steps) if steps else len(edges)
    reached, front = set(start), set(start)
    while front and left:
        front = {n for name in front for n in edges.get(name, ())} - reached
        reached |= front
        left -= 1
    return reached


def _parents(models: Mapping[str, Model]) -> dict[str, set[str]]:
    return {name: {s for s in model.sources if s in models} for name, model in models.items()}


def _children(models: Mapping[str, Model]) -> dict[str, set[str]]:
    children: dict[str, set[str]] = {name: set() for name in models}
    for name, model in models.items():
        for source in model.sources:
            children.setdefault(source, set()).add(name)
    return children


def downstream(models: Mapping[str, Model], tables: Iterable[str]) -> set[str]:
    """The tables given and every model that reads them, near or far."""
    return _reach(tables, _children(models), "")
