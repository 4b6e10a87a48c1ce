"""Tables of the pages: rows and columns of the recipes, values of the results."""

from __future__ import annotations

from pathlib import Path

import charts
import expected
import provenance
import pytest
import result_tables

HEADER = (
    "table,recipe,model,dataset,metric,unit,better,published,mean,std,difference,seeds,values,run_seeds,parameters,epochs,"
    "seconds,step_seconds,precision,embedded,hardware"  # of before rows said how they were made; still read
)
CTX = (
    "hattnet/table1,hattnet/table1/mref-hattnet-ctx,HAttNet-CTX,MREF,accuracy,%,higher,0.9851,0.98,0.0012,-0.0051,3,0.98,0,"
    "59273,100,60,,32,False,some GPU"
)
LITE = "icasc/voc2012-lite,icasc/voc2012-lite/{},{},VOC 2012,{},%,higher,,{},,,1,0.5,0,3,10,60,0.04,bf16,False,some GPU"


def write(folder: Path, *rows: str, paper: str = "hattnet") -> Path:
    (folder / f"{paper}.csv").write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    return folder


def test_no_file_is_not_measured_yet(tmp_path: Path) -> None:
    assert result_tables.results("hattnet", tmp_path).startswith("Not measured yet")


def test_table_has_models_down_and_datasets_across(tmp_path: Path) -> None:
    text = result_tables.results("hattnet", write(tmp_path, CTX))
    lines = text.splitlines()
    assert lines.count("| | MREF | MDIST | MBG |") == 1
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ") and "MREF" not in line]
    assert rows == ["STN", "SOFT", "HARD", "HAttNet", "HAttNet-CTX"]
    assert "| HAttNet-CTX | 98.00 ± 0.12 (98.51) | not measured yet | not measured yet |" in lines
    # published strengths, and the whole of the other tables
    assert [line.endswith(": not measured yet.") for line in lines].count(True) == 5
    assert "`hattnet/table1-ours` (the same networks with more data and our schedule): not measured yet." in lines
    assert "3 seeds; precision 32; some GPU." in text


def test_cells_without_spread_published_or_real_data(tmp_path: Path) -> None:
    row = CTX.replace("0.9851,0.98,0.0012,-0.0051,3", ",0.5,,,1").replace("False", "True")
    text = result_tables.results("hattnet", write(tmp_path, row.replace("accuracy", "true_positive_strength_last")))
    assert r"| HAttNet-CTX | 50.00\* |" in text
    assert "1 seed; precision 32" in text
    assert "on embedded data, not the paper's: do not compare" in text


def test_tables_and_metrics_that_no_recipe_has_are_shown_too(tmp_path: Path) -> None:
    row = CTX.replace("table1", "table9").replace("MREF", "VG").replace("accuracy,%", "own_metric,")
    text = result_tables.results("hattnet", write(tmp_path, row))
    assert "**VG** (`hattnet/table9`)" in text
    assert "| | Own metric |" in text
    assert "| HAttNet-CTX | 0.98 ± 0.00 (0.99) |" in text  # no percentage


def test_classes_stand_beside_the_published_ones(tmp_path: Path) -> None:
    (tmp_path / "icasc-voc2012.csv").write_text("class,ResNet-18\ncat,93.91\nmean,77.44\n", encoding="utf-8")
    rows = [
        LITE.format("ach", "Lite0 + ICASC A_ch", "average_precision/cat", 0.5),
        LITE.format("baseline", "Lite0", "average_precision/cat", 0.925),
        LITE.format("baseline", "Lite0", "label_map", 0.5),
    ]
    write(tmp_path, *rows, paper="icasc")
    assert result_tables.classes("icasc/voc2012-lite", tmp_path, tmp_path).splitlines() == [
        "| class | ResNet-18 | ours, Lite0 | ours, Lite0 + ICASC A_ch |",
        "|---|---:|---:|---:|",
        "| cat | 93.91 | 92.50 | 50.00 |",
        "| mean | 77.44 | 50.00 |  |",
    ]
    assert "average_precision/" not in result_tables.results("icasc", tmp_path)
    (tmp_path / "icasc.csv").unlink()
    assert "| cat | 93.91 |" in result_tables.classes("icasc/voc2012-lite", tmp_path, tmp_path).splitlines()


def test_right_and_wrong_answers(tmp_path: Path) -> None:
    assert result_tables.splits("icasc/voc2012-lite", tmp_path) == "Right and wrong answers: not measured yet."
    rows = [
        LITE.format("baseline", "Lite0", "pointing_game/right", 0.8),
        LITE.format("baseline", "Lite0", "pointing_game/wrong", 0.51234),
    ]
    lines = result_tables.splits("icasc/voc2012-lite", write(tmp_path, *rows, paper="icasc")).splitlines()
    assert lines[:3] == ["| right / wrong | Pointing game |", "|---|---:|", "| Lite0 | 80.0 / 51.2 |"]
    assert lines[-1].endswith("| – / – |")


def test_one_dataset_leaves_room_for_size(tmp_path: Path) -> None:
    row = (
        "aw/cifar10,aw/cifar10/aw-resnet20,AW-ResNet-20,CIFAR-10,accuracy,%,higher,,0.9,0.01,,3,0.9,0,286890,30,60,0.00321,"
        "bf16,False,some GPU"
    )
    lines = result_tables.results("aw", write(tmp_path, row, paper="aw")).splitlines()
    assert "**CIFAR-10** (`aw/cifar10`: one small network and schedule, every mechanism)" in lines
    assert "| | Accuracy | Parameters |" in lines  # no time of a step: the row does not say if it was alone
    assert "| AW-ResNet-20 | 90.00 ± 1.00 | 286,890 |" in lines
    assert "| SE-ResNet-20 | not measured yet |  |" in lines
    assert "`aw/table1` (the paper's table): not measured yet." in lines


def test_metrics_of_one_dataset_stand_side_by_side(tmp_path: Path) -> None:
    row = "fan/table6-ours,fan/table6-ours/{},{},20 News,{},%,higher,,{},,,1,0.9,0,100,30,60,0.002,bf16,False,some GPU"
    rows = [
        row.format("hatt", "Hatt", "accuracy", 0.6),
        row.format("fan-sup", "FAN-hatt-sup", "center_mass", 0.5),
        row.format("fan-sup", "FAN-hatt-sup", "accuracy", 0.7),
    ]
    lines = result_tables.results("fan-documents", write(tmp_path, *rows, paper="fan-documents")).splitlines()
    assert "| | Accuracy | Center-mass | Parameters |" in lines
    assert "| Hatt | 60.00 | – | 100 |" in lines  # ran, and has none
    assert "| FAN-hatt-unsup | not measured yet | not measured yet |  |" in lines
    assert "| FAN-hatt-sup | 70.00 | 50.00 | 100 |" in lines


def test_times_of_steps_are_shown_of_runs_that_were_alone() -> None:
    row = dict.fromkeys(HEADER.split(","), "") | {"metric": "accuracy", "mean": "0.5", "seeds": "1", "parameters": "9"}
    jobs = {"a": "1", "b": "", "c": "6", "d": "1; 6"}
    rows = [row | {"model": m, "step_seconds": "0.002", "jobs": j} for m, j in jobs.items()]
    table = result_tables.Table("t", rows)
    for text in (result_tables.side_by_side("T", table), result_tables.block("T", table, "accuracy")):
        times = [line.split("|")[-2].strip() for line in text.splitlines() if line.startswith("| ")]
        assert times == ["ms a step", "2.00", "", "", ""]
    assert "ms a step" not in result_tables.side_by_side("T", result_tables.Table("t", rows[1:]))


def test_a_model_that_is_measured_again_is_left_out_of_the_short_table() -> None:
    rows = [
        dict.fromkeys(HEADER.split(","), "") | {"table": "icasc/voc2012-lite", "recipe": next(iter(expected.AGAIN))}
    ]
    whole, short = (result_tables.Table.of("icasc/voc2012-lite", rows, again) for again in (True, False))
    assert len(whole.models) == len(short.models) + 1


def test_what_is_expected_exists() -> None:
    from foveal.recipe.grids import cell_names, grids

    assert set().union(*expected.TABLES.values()) | expected.UNPAIRED <= set(grids())
    pairs = [pair for compared in expected.COMPARED.values() for pair in compared]
    assert {cell for _, *cells in pairs for cell in cells} | expected.AGAIN <= set(cell_names())


MEASURED = [paper for paper in expected.TABLES if (result_tables.RESULTS / f"{paper}.csv").exists()]


def test_what_is_not_measured_says_how_to() -> None:
    for paper in set(expected.TABLES) - set(MEASURED):
        text = result_tables.results(paper)
        assert all(f"foveal reproduce {table} --seeds 3" in text for table in expected.TABLES[paper])
    assert {"aw", "fan-documents", "hattnet", "icasc"} <= set(MEASURED)


@pytest.mark.parametrize("paper", [paper for paper in expected.COMPARED if paper in MEASURED])
def test_comparisons_are_of_measured_cells(paper: str) -> None:
    rows = result_tables.read(result_tables.RESULTS / f"{paper}.csv")
    seeds = {(row["metric"], row["recipe"]): row["run_seeds"].split() for row in rows}
    counts = {(row["metric"], row["recipe"]): int(row["seeds"]) for row in rows}
    expected_lines = []
    for metric, *cells in expected.COMPARED[paper]:
        one, other = ((metric, cell) for cell in cells)
        if one not in seeds or other not in seeds:
            continue
        if seeds[one] and seeds[other] and cells[0].rpartition("/")[0] not in expected.UNPAIRED:
            found = str(len(set(seeds[one]) & set(seeds[other])))
        else:
            found = f"{counts[one]} and {counts[other]}"
        expected_lines += [[*cells, found]] * ("1" not in found.split())
    lines = [line.split("|")[1:-1] for line in result_tables.comparisons(paper).splitlines() if line.startswith("| ")]
    shown = [[line[1].strip("`† "), line[2].strip("`† "), line[-1].strip()] for line in lines[1:]]
    assert shown == expected_lines


def test_one_seed_is_not_compared(tmp_path: Path) -> None:
    template = LITE.replace("voc2012-lite", "confusion")
    rows = [template.format(name, name, "accuracy", 0.5) for name in ("baseline", "ach")]
    assert "two seeds" in result_tables.comparisons("icasc", write(tmp_path, *rows, paper="icasc"))


def test_comparisons_say_what_is_not_paired_does_not_vary_or_is_of_older_code(tmp_path: Path) -> None:
    header = "table,recipe,metric,unit,better,values,run_seeds,older\n"
    row = "hattnet/table1,hattnet/table1/mref-{},accuracy,%,higher,{}\n"
    rows = (
        row.format("stn", "0.2 0.3,0 1,lr changed"),
        row.format("soft", "0.3 0.4,0 1,"),
        row.format("hard", "0.5 0.7,,"),
        row.format("hattnet", "0.8 0.7,0 1,"),
    )
    (tmp_path / "hattnet.csv").write_text(header + "".join(rows), encoding="utf-8")
    text = result_tables.comparisons("hattnet", tmp_path)
    name = "`hattnet/table1/mref-{}`".format
    assert f"| accuracy | {name('stn')}† | {name('soft')} | +10.00 | does not vary | – | 2 |" in text
    assert f"| accuracy | {name('soft')} | {name('hard')} | +25.00 |" in text
    assert text.count(" | 2 and 2 |") == 2
    assert "Welch's t-test (`--unpaired`)" in text
    assert text.endswith(" † Row of older code.")
    (tmp_path / "hattnet.csv").write_text(header + "".join(rows[1:]), encoding="utf-8")
    assert "older" not in result_tables.comparisons("hattnet", tmp_path)


def test_columns_are_those_that_reproduce_writes() -> None:
    from foveal.reproduce.summary import COLUMNS

    assert set(HEADER.split(",")) < set(COLUMNS)
    for paper in MEASURED:
        path = result_tables.RESULTS / f"{paper}.csv"
        assert path.read_text(encoding="utf-8").splitlines()[0] == ",".join(COLUMNS)


@pytest.mark.parametrize("paper", MEASURED)
def test_rows_are_what_their_recipe_makes_today_or_say_what_differs(paper: str) -> None:
    """If this fails, make the rows anew or run docs/provenance.py, which marks them, and docs/tables.py."""
    rows = result_tables.read(result_tables.RESULTS / f"{paper}.csv")
    marked = provenance.marked(rows)
    wrong = {f"{row['recipe']}: {now['older']}" for row, now in zip(rows, marked, strict=True) if row != now}
    assert not wrong, "\n".join(sorted(wrong))
    assert all(row["revision"] and row["torch"] and row["hardware"] for row in rows)


def test_a_row_of_other_settings_is_marked() -> None:
    row = next(
        row for row in result_tables.read(result_tables.RESULTS / "hattnet.csv") if row["optimiser"] == "rmsprop"
    )
    assert provenance.marked([row])[0]["older"] == provenance.UNRECORDED
    changed = row | {"lr": "0.5", "batch": "7", "revision": "abc"}
    assert provenance.marked([changed])[0]["older"] == "train.batch 7, now 200; optim.lr 0.5, now 0.003"


def test_pages_say_which_rows_are_of_older_code(tmp_path: Path) -> None:
    header = f"{HEADER},torch,revision,older"
    hard = CTX.replace("hattnet-ctx", "hard").replace("HAttNet-CTX", "HARD")
    lines = [header, f"{CTX},2.9,abc,lr changed", f"{hard},2.9,def,", ""]
    (tmp_path / "hattnet.csv").write_text("\n".join(lines), encoding="utf-8")
    text = result_tables.results("hattnet", tmp_path)
    assert "| HAttNet-CTX | 98.00 ± 0.12† (98.51) |" in text
    assert "| HARD | 98.00 ± 0.12 (98.51) |" in text
    assert "some GPU, torch 2.9; revision abc, def. † Older code: lr changed." in text
    (tmp_path / "hattnet.csv").write_text("\n".join(lines[:2]), encoding="utf-8")
    text = result_tables.results("hattnet", tmp_path)
    assert "| HAttNet-CTX | 98.00 ± 0.12 (98.51) |" in text
    assert "revision abc. Older code: lr changed." in text


def test_accuracy_against_costs_and_the_papers_conclusions(tmp_path: Path) -> None:
    text = charts.tradeoff("spatial/atlas", tmp_path)
    assert "foveal reproduce spatial/atlas" in text
    assert "nearly useless" in text
    row = (
        "spatial/atlas,spatial/atlas/none-{0},{0},none,mean_iou,%,higher,,{1},,,1,0.5,0,100,30,60,0.002,bf16,False,GPU"
    )
    write(tmp_path, *(row.format(*pair) for pair in (("1111", 0.55), ("0010", 0.56))), paper="spatial")
    costs = "recipe,gflops,ms,mib\nspatial/atlas/none-1111,40,30,900\nspatial/atlas/none-0010,30,25,800\n"
    (tmp_path / "bench-atlas.csv").write_text(costs, encoding="utf-8")
    text = charts.tradeoff("spatial/atlas", tmp_path)
    assert text.count("<figure") == 3
    assert "0010, none (56.0 at 30)" in text
    assert "nearly useless" in text


def test_accuracy_against_what_the_runs_counted(tmp_path: Path) -> None:
    row = "spatial/signals,spatial/signals/{0},{0},scenes,{1},{2},higher,,{3},,,1,0.5,0,100,30,60,0.002,32,False,CPU"
    values = (("0010", "mean_iou", "%", 0.88), ("0010", "mflops", "MFLOP", 12.35))
    write(tmp_path, *(row.format(*value) for value in values), paper="signals")
    text = charts.tradeoff("spatial/signals", tmp_path)
    assert text.count("<figure") == 1
    assert "0010, scenes (88.0 at 12.35)" in text
    assert "concludes" not in text
