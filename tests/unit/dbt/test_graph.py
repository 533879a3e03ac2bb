"""Who reads what in a dbt project."""

from __future__ import annotations

from thermocline.dbt.graph import DbtGraph, DbtNode


def model(name: str, materialized: str, *parents: str) -> DbtNode:
    return DbtNode(
        name, "model", name, name, f"shop.{name}", materialized=materialized, parents=parents
    )


GRAPH = DbtGraph(
    [
        DbtNode("raw", "source", "raw", "raw", "bronze.raw", materialized="source"),
        model("staged", "view", "raw"),
        model("joined", "view", "staged", "other"),
        model("other", "table", "raw"),
        model("inlined", "ephemeral", "joined"),
        model("mart", "table", "inlined", "inlined"),
        DbtNode("test", "test", "test", "test", parents=("mart", "joined")),
    ]
)


def names(nodes: list[DbtNode]) -> list[str]:
    return sorted(node.id for node in nodes)


def test_views_that_a_selection_reads_are_live_however_far_up() -> None:
    assert names(GRAPH.upstream_views(["mart"])) == ["joined", "staged"]
    assert names(GRAPH.upstream_views(["test"])) == ["joined", "staged"]


def test_a_view_above_a_table_is_not_needed_and_a_selected_one_is_made_by_dbt() -> None:
    assert names(GRAPH.upstream_views(["other"])) == []
    assert names(GRAPH.upstream_views(["mart", "joined"])) == ["staged"]


def test_reads_look_through_what_holds_no_rows() -> None:
    assert names(GRAPH.reads("mart")) == ["joined"]
    assert names(GRAPH.reads("mart", through=["joined", "staged"])) == ["other", "raw"]


def test_a_nodes_own_setting_decides_whether_it_is_made_from_nothing() -> None:
    kept = DbtNode("kept", "model", "kept", "kept", full_refresh=False)
    history = DbtNode("history", "snapshot", "history", "history", materialized="snapshot")
    assert [n.is_rebuilt(True) for n in (GRAPH.nodes["mart"], kept, history)] == [
        True,
        False,
        False,
    ]
    assert not GRAPH.nodes["mart"].is_rebuilt(False)


def test_a_selected_seed_that_is_read_as_a_source_is_loaded_first() -> None:
    place = ("lake", "shop", "raw")
    seed = DbtNode("seed", "seed", "raw", "raw", "shop.raw", relation=place, materialized="seed")
    source = DbtNode("source", "source", "raw", "raw", "shop.raw", relation=place)
    mart = DbtNode("mart", "model", "mart", "mart", "shop.mart", parents=("source",))
    graph = DbtGraph([seed, source, mart])
    assert graph.find_writer(source) == seed
    assert graph.seeds_read_as_sources(["seed", "mart"]) == [seed]
    assert graph.seeds_read_as_sources(["mart"]) == []
    assert graph.seeds_read_as_sources(["seed"]) == []
