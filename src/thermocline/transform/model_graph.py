"""Sort models by what they read, and select models with dbt's graph syntax."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from thermocline.errors import BadInput
from thermocline.transform.models import Model

_TERM = re.compile(r"(?P<up>\d*\+)?(?P<what>[^+]+)(?P<down>\+\d*)?")


def sort_models(models: Mapping[str, Model]) -> list[Model]:
    """Return all models, each after the models it reads. A cycle is an error that names it."""
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
    """Return the models that dbt's graph syntax selects; all of them without terms.

    A term is a table, a bare name, a pattern with `*`, `tag:X` or `layer:X`. `+` before it adds
    the models it reads, `+` after it the models that read it; a number limits the steps. Terms
    joined by a comma intersect; several terms add up.
    """
    if not terms:
        return set(models)
    selected: set[str] = set()
    for term in (part for text in terms for part in text.split()):
        parts = [_select_term(models, part) for part in term.split(",")]
        selected |= set.intersection(*parts)
    return selected


def _select_term(models: Mapping[str, Model], term: str) -> set[str]:
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
        result |= _find_reachable(matched, _find_parents(models), found["up"].rstrip("+"))
    if found["down"]:
        result |= _find_reachable(matched, _find_children(models), found["down"].lstrip("+"))
    return result


def _matches(model: Model, what: str) -> bool:
    method, _, value = what.rpartition(":")
    if method == "tag":
        return value in model.tags
    if method == "layer":
        return model.contract.layer == value
    if method:
        raise BadInput(f"{method}: is not a selector.", "Use tag: or layer:.")
    pattern = re.escape(what).replace(r"\*", ".*")
    return bool(re.fullmatch(pattern, model.table) or re.fullmatch(pattern, model.contract.name))


def _find_reachable(start: Iterable[str], edges: Mapping[str, set[str]], steps: str) -> set[str]:
    left = int(steps) if steps else len(edges)
    reached, front = set(start), set(start)
    while front and left:
        front = {n for name in front for n in edges.get(name, ())} - reached
        reached |= front
        left -= 1
    return reached


def _find_parents(models: Mapping[str, Model]) -> dict[str, set[str]]:
    return {name: {s for s in model.sources if s in models} for name, model in models.items()}


def _find_children(models: Mapping[str, Model]) -> dict[str, set[str]]:
    children: dict[str, set[str]] = {name: set() for name in models}
    for name, model in models.items():
        for source in model.sources:
            children.setdefault(source, set()).add(name)
    return children


def find_downstream(models: Mapping[str, Model], tables: Iterable[str]) -> set[str]:
    """Return the tables and every model that reads them, directly or indirectly."""
    return _find_reachable(tables, _find_children(models), "")
