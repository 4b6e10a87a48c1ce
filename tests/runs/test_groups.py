"""Runs put together by task, dataset and recipe."""

import pytest
from fake_runs import write_run

from foveal.runs import grouped, read_runs

KEY = ("refer", False, "MREF")


def test_seeds_are_put_together_and_other_settings_are_not(tmp_path):
    for seed in (0, 1, 10):
        train = {"epochs": 60, "devices": 1 + seed}
        write_run(tmp_path / f"soft{seed}", seed=seed, kept=False, settings={"train": train})
    write_run(tmp_path / "short", seed=2, kept=False, settings={"train": {"epochs": 5}})
    write_run(tmp_path / "ours", seed=2, kept=False, recipe="mine/mref-soft-ours")
    groups = grouped(read_runs(tmp_path))[KEY]
    assert {group.name: [run.seed for run in group.runs] for group in groups} == {
        "SOFT train.epochs=5": ["2"],
        "SOFT train.epochs=60": ["0", "1", "10"],
        "SOFT ours": ["2"],
    }


def test_what_is_written_and_what_is_left_open_are_the_same(tmp_path):
    """Defaults, a former name, usual weights, and what changes nothing in a run."""
    write_run(tmp_path / "a", kept=False, recipe="hattnet/mref-soft")
    settings = {"train": {"epochs": 60, "batch": 200}, "loss": {"weights": {"answer": 1}}, "published": {"accuracy": 1}}
    write_run(tmp_path / "b", seed=1, kept=False, recipe="hattnet/table1/mref-soft", settings=settings, place=(0, 0))
    (group,) = grouped(read_runs(tmp_path))[KEY]
    assert (group.name, len(group.runs)) == ("SOFT", 2)


def test_recipes_that_cannot_be_loaded_are_compared_as_they_are_written(tmp_path):
    for seed, steps in enumerate((3, 3, 4)):
        settings = {"task": "unheard-of", "steps": steps}
        write_run(tmp_path / str(seed), seed=seed, kept=False, settings=settings, task="unheard-of")
    ((_, _, dataset),) = groups = grouped(read_runs(tmp_path))
    assert dataset == "MREF"
    assert [(g.name, len(g.runs)) for g in groups["unheard-of", False, "MREF"]] == [
        ("SOFT steps=3", 2),
        ("SOFT steps=4", 1),
    ]


def test_an_unfinished_run_joins_its_dataset_and_model(tmp_path):
    write_run(tmp_path / "a", embedded=True, kept=False)
    write_run(tmp_path / "b", seed=1, embedded=True, finished=False)
    ((key, groups),) = grouped(read_runs(tmp_path)).items()
    assert key == ("refer", True, "MREF")
    assert [(g.name, len(g.runs), len(g.finished)) for g in groups] == [("SOFT", 2, 1)]


def test_the_order_is_that_of_the_table_and_then_of_the_alphabet(tmp_path):
    rows = {"STN": (0, 1), "SOFT": (2, 0), "HARD": (2, 1), "HAttNet-CTX": (4, 1), "zeta": None, "Alpha": None}
    for title, place in reversed(rows.items()):
        write_run(tmp_path / title, title, kept=False, place=place)
    write_run(tmp_path / "m", dataset="MDIST", kept=False, place=(0, 0))
    write_run(tmp_path / "x", dataset="Another", kept=False)
    groups = grouped(read_runs(tmp_path))
    assert [dataset for _, _, dataset in groups] == ["MDIST", "MREF", "Another"]
    assert [group.name for group in groups[KEY]] == ["STN", "SOFT", "HARD", "HAttNet-CTX", "Alpha", "zeta"]


def test_tasks_on_one_dataset_are_kept_apart(tmp_path):
    write_run(tmp_path / "a", kept=False)
    write_run(tmp_path / "b", kept=False, task="classify", settings={"data": {"name": "digits"}})
    assert set(grouped(read_runs(tmp_path))) == {KEY, ("classify", False, "MREF")}


def test_averages_leave_out_what_is_missing(tmp_path):
    curve = {"edges": [0, 1, 2], "count": [1, 1]}
    write_run(tmp_path / "a", kept=False, curves={"scale_accuracy": curve | {"accuracy": [0.5, None]}})
    write_run(tmp_path / "b", seed=1, kept=False, curves={"scale_accuracy": curve | {"accuracy": [0.7, None]}})
    (group,) = grouped(read_runs(tmp_path))[KEY]
    assert group.curve("scale_accuracy", "accuracy") == [pytest.approx(0.6), None]
    assert group.curve("nothing", "accuracy") is None
    write_run(tmp_path / "c", seed=2, kept=False, curves={"scale_accuracy": curve | {"accuracy": [0.9]}})
    (group,) = grouped(read_runs(tmp_path))[KEY]
    assert group.curve("scale_accuracy", "accuracy") == [0.5, None]


def test_numbers_over_seeds(tmp_path):
    info = {"title": "Error", "unit": "ms", "better": "lower", "about": ""}
    for seed, error in enumerate((1.0, 2.0, None)):
        write_run(
            tmp_path / str(seed),
            seed=seed,
            metrics={"error": error, "note": "text"},
            infos={"error": info},
            parts={"error": {"left": seed, "right": None}, "damaged": 3},
            published={"error": 1.5},
        )
    (group,) = grouped(read_runs(tmp_path))[KEY]
    assert group.metrics == ["error", "note"]
    assert group.numbers("error") == [1.0, 2.0]
    assert group.numbers("note") == []
    assert (group.info("error").title, group.info("error").unit, group.info("error").better) == ("Error", "ms", "lower")
    assert group.info("other").title == "Other"
    assert (group.published("error"), group.published("note")) == (1.5, None)
    assert group.parts("error") == {"left": [0, 1, 2]}
    assert group.parts("damaged") == group.parts("none") == {}
    assert group.values("parameters") == [30470] * 3
    assert group.samples is not None
