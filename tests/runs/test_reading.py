"""Reading whatever a run left."""

import json

import pytest
from fake_runs import write_run

from foveal.errors import RunError
from foveal.runs import read_run, read_runs


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    write_run(tmp_path / "a" / "b" / "soft", kept=False)
    write_run(tmp_path / "hard", "HARD", kept=False)
    write_run(tmp_path / ".trash" / "old", kept=False)
    assert {run.title for run in read_runs(tmp_path)} == {"SOFT", "HARD"}
    assert len(read_runs([tmp_path, tmp_path / "hard"])) == 2
    assert len(read_runs(str(tmp_path / "hard"))) == 1


@pytest.mark.parametrize("path", ["", "nothing", [], None, [3]])
def test_no_run(tmp_path, path):
    with pytest.raises(RunError, match="run folder"):
        read_runs(tmp_path / path if isinstance(path, str) else path)


def test_what_a_run_says(tmp_path):
    run = read_run(write_run(tmp_path / "a", seed=3, embedded=True, place=(2, 1)))
    assert (run.task, run.title, run.dataset, run.seed, run.embedded) == ("refer", "SOFT", "MREF", "3", True)
    assert (run.recipe_name, run.place, run.problems) == ("mine/mref-soft", (2, 1), ())
    assert run.setting("train", "epochs") == 60
    assert run.setting("train", "epochs", "more") is None
    assert run.part("metrics")["target_area"] == 0.0234
    assert run.part("title") == run.part("nothing") == {}
    assert run.samples.about["question"] == "What colour is the {query}?"


def test_an_unfinished_run_has_its_header(tmp_path):
    run = read_run(write_run(tmp_path / "a", dataset="MDIST", embedded=True, finished=False))
    assert (run.finished, run.result, run.samples) == (False, {}, None)
    assert (run.task, run.dataset, run.embedded) == ("refer", "MDIST", True)


def test_a_truncated_line_is_left_out_and_a_resumed_epoch_counts_once(tmp_path):
    run = read_run(write_run(tmp_path / "a", count=5, truncated=True, kept=False))
    assert [row["epoch"] for row in run.epochs] == [0, 1, 2, 3]
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"epoch": 3, "val/accuracy": 0.99}) + '\n"text"\n[1]\n{"epoch": null}\n')
    assert [row.get("val/accuracy") for row in read_run(tmp_path / "a").epochs][3:] == [0.99]


def test_only_numbers_of_the_journal_are_read(tmp_path):
    folder = write_run(tmp_path / "a", kept=False)
    lines = [
        '{"epoch": 0, "val/accuracy": 0.5, "val/loss": NaN, "note": "text", "more": {"a": 1}, "flag": true}',
        '{"epoch": Infinity, "val/accuracy": 1}',
        '{"val/accuracy": 1}',
    ]
    (folder / "metrics.jsonl").write_bytes(b"\xff\xfe\n" + "\n".join(lines).encode())
    run = read_run(folder)
    assert run.epochs == [{"epoch": 0, "val/accuracy": 0.5}]
    assert run.problems == ("metrics.jsonl: 2 line(s) cannot be read",)


def test_a_whole_last_line_that_cannot_be_read_is_named(tmp_path):
    """One that a crash cut off is not."""
    folder = write_run(tmp_path / "a", kept=False)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"epoch": 99, "val/acc')
    assert read_run(folder).problems == ()
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    assert read_run(folder).problems == ("metrics.jsonl: 1 line(s) cannot be read",)


def test_damaged_files_are_named(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "result.json").write_text('{"title": ')
    (folder / "environment.json").write_text("")
    (folder / "samples.safetensors").write_bytes(b"x" * 30)
    (folder / "run.json").write_text("[]")
    (folder / "recipe.yaml").write_text("a: [")
    run = read_run(folder)
    assert not run.finished
    assert run.samples is None
    assert (run.title, run.settings) == ("a", {})
    names = {problem.split()[0] for problem in run.problems}
    assert names == {"run.json", "environment.json", "samples.safetensors", "result.json"}
    assert str(tmp_path) not in " ".join(run.problems).replace(f"foveal train {folder}", "").replace(
        f"foveal test {folder}", ""
    )


def test_a_folder_where_a_file_should_be(tmp_path):
    folder = write_run(tmp_path / "a", kept=False)
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    run = read_run(folder)
    assert run.epochs == []
    assert any("metrics.jsonl cannot be read" in problem for problem in run.problems)


def test_a_run_of_a_newer_format_is_named(tmp_path):
    folder = write_run(tmp_path / "a", kept=False)
    (folder / "run.json").write_text('{"format": 99}')
    (problem,) = read_run(folder).problems
    assert "upgrade foveal" in problem
    assert "\n" not in problem
