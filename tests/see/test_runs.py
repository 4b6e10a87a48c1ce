import json

import pytest

from foveal.errors import RunError
from foveal.see.runs import grouped, read_run, read_runs


def test_runs_are_found_at_any_depth_and_once(tmp_path, write_run):
    write_run(tmp_path / "a" / "b" / "soft", samples=False)
    write_run(tmp_path / "hard", "HARD", samples=False)
    (tmp_path / ".trash").mkdir()
    write_run(tmp_path / ".trash" / "old", samples=False)
    assert {run.title for run in read_runs(tmp_path)} == {"SOFT", "HARD"}
    assert len(read_runs([tmp_path, tmp_path / "hard"])) == 2
    assert len(read_runs(str(tmp_path / "hard"))) == 1


@pytest.mark.parametrize("where", ["", "nothing", []])
def test_no_run(tmp_path, where):
    with pytest.raises(RunError, match="run folder"):
        read_runs(tmp_path / where if isinstance(where, str) else where)


def test_a_truncated_line_is_left_out_and_a_resumed_epoch_counts_once(tmp_path, write_run):
    run = read_run(write_run(tmp_path / "a", epochs=5, truncated=True, samples=False))
    assert [row["epoch"] for row in run.epochs] == [0, 1, 2, 3]
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"epoch": 3, "val/accuracy": 0.99}) + '\n"text"\n[1]\n{"epoch": null}\n')
    assert [row.get("val/accuracy") for row in read_run(tmp_path / "a").epochs][3:] == [0.99]


def test_damaged_files_are_named(tmp_path, write_run):
    folder = write_run(tmp_path / "a")
    (folder / "result.json").write_text('{"title": ')
    (folder / "environment.json").write_text("")
    (folder / "samples.safetensors").write_bytes(b"x" * 30)
    (folder / "recipe.yaml").write_text("a: [")
    run = read_run(folder)
    assert not run.finished
    assert run.samples is None
    assert (run.title, run.settings) == ("a", {})
    assert [problem.split()[0] for problem in run.problems] == ["samples.safetensors", "result.json"]
    assert str(tmp_path) not in " ".join(run.problems)


def test_seeds_are_put_together_and_other_settings_are_not(tmp_path, write_run):
    for seed in (0, 1, 10):
        write_run(
            tmp_path / f"soft{seed}", seed=seed, samples=False, settings={"train": {"epochs": 60, "devices": seed}}
        )
    write_run(tmp_path / "short", seed=2, samples=False, settings={"train": {"epochs": 5}})
    write_run(tmp_path / "ours", seed=2, samples=False, recipe="hattnet/mref-soft-ours")
    groups = grouped(read_runs(tmp_path))["MREF", False]
    assert {group.name: [run.seed for run in group.runs] for group in groups} == {
        "SOFT train.epochs=5": ["2"],
        "SOFT train.epochs=60": ["0", "1", "10"],
        "SOFT ours": ["2"],
    }


def test_an_unfinished_run_joins_its_dataset_and_model(tmp_path, write_run):
    write_run(tmp_path / "a", embedded=True, samples=False)
    write_run(tmp_path / "b", seed=1, finished=False)
    ((dataset, groups),) = grouped(read_runs(tmp_path)).items()
    assert dataset == ("MREF", True)
    assert [(g.name, len(g.runs), len(g.finished)) for g in groups] == [("SOFT", 2, 1)]


def test_models_and_datasets_have_a_fixed_order(tmp_path, write_run):
    for title in ("zeta", "HAttNet-CTX", "Alpha", "HARD", "STN"):
        write_run(tmp_path / title, title, samples=False)
    write_run(tmp_path / "m", dataset="MDIST", samples=False)
    write_run(tmp_path / "x", dataset="Another", samples=False)
    groups = grouped(read_runs(tmp_path))
    assert list(groups) == [("MREF", False), ("MDIST", False), ("Another", False)]
    assert [group.name for group in groups["MREF", False]] == ["STN", "HARD", "HAttNet-CTX", "Alpha", "zeta"]


def test_averages_leave_out_what_is_missing(tmp_path, write_run):
    edges = {"edges": [0, 1, 2], "count": [1, 1]}
    write_run(tmp_path / "a", samples=False, scale_accuracy=edges | {"accuracy": [0.5, None]})
    write_run(tmp_path / "b", seed=1, samples=False, scale_accuracy=edges | {"accuracy": [0.7, None]})
    (group,) = grouped(read_runs(tmp_path))["MREF", False]
    assert group.average("scale_accuracy", "accuracy") == [pytest.approx(0.6), None]
    assert group.average("nothing", "accuracy") is None
    write_run(tmp_path / "c", seed=2, samples=False, scale_accuracy=edges | {"accuracy": [0.9]})
    (group,) = grouped(read_runs(tmp_path))["MREF", False]
    assert group.average("scale_accuracy", "accuracy") == [0.5, None]
