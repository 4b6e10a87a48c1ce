"""Commands on one run: train, test, predict, see."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from foveal.cli.imports import quick_imports
from foveal.cli.terminal import Data, Overrides, say, say_written
from foveal.errors import UserError
from foveal.files import write_text


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, a YAML file, or a run folder to resume.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/RECIPE/seedN if left out.")] = None,
    data: Data = None,
) -> None:
    """Train a recipe, or resume a run."""
    from foveal.recipe import available, load

    path = Path(recipe)
    if (path / "recipe.yaml").is_file() or (path.is_dir() and recipe not in available()):
        from foveal.runs import find_run

        folder = find_run(path)
        if overrides or out:
            raise UserError(f"{folder} is a run: it is resumed as it was started, without overrides and --out")
        with quick_imports():
            plan = folder.recipe()
    else:
        from foveal.reproduce import run_path
        from foveal.runs import RunFolder

        with quick_imports():
            plan = load(recipe, overrides or [])  # a wrong name is reported before the slow imports
        folder = RunFolder(out or run_path(plan))
    finished = folder.finished
    from foveal.tasks import fit
    from foveal.tasks.train import is_follower

    result = fit(plan, folder.path, data=data)
    if finished:
        say(f"{folder} is finished already; its result:")
    if not is_follower():
        _show_result(result)
        _show_place(folder.path)


def evaluate(run: Annotated[Path, typer.Argument(help="A finished run folder.")], data: Data = None) -> None:
    """Test a finished run again."""
    from foveal.runs import find_run
    from foveal.runs.zoo import in_zoo

    folder = find_run(run)  # before the slow imports: a wrong folder is reported at once
    with quick_imports():
        from foveal.tasks import evaluate as test_again
        from foveal.tasks.train import is_follower

    test_again(run, data=data, tell=lambda result: None if is_follower() else _show_result(result))
    if not is_follower() and not in_zoo(folder.path):
        _show_place(run)


def predict(
    run: Annotated[Path, typer.Argument(help="A finished run folder, or a model of foveal list zoo.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="What the task takes: an image file, an image file and a query, a text or a text file. Options of the "
            "task may follow, such as --label CLASS, the true class."
        ),
    ],
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Another run or model of the same task, compared on the same input; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the picture goes; a new file named after the input if left out.")
    ] = None,
) -> None:
    """Ask a model about a file or a text of your own; prints the answer and draws where it looked."""
    from foveal.runs import find_run

    for folder in (run, *(beside or ())):
        find_run(folder)  # before the slow imports
    positional, options = _task_options(inputs)
    with quick_imports():
        from foveal.tasks import predict as ask

    prediction = ask(run, *positional, beside=beside, **options)
    for title, lines in prediction.lines.items():
        if len(prediction.lines) > 1:
            say(title)
        for line in lines:
            say(line)
    if prediction.remark:
        say(prediction.remark)
    path = out or _free(prediction.stem)
    if prediction.picture is not None:
        try:
            prediction.picture.save(path)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot write {path}: {error}; choose another --out ending in .png") from error
        say_written(prediction.caption, path)
    if prediction.data is not None:
        write_text(path.with_suffix(".json"), json.dumps(prediction.data, indent=1, ensure_ascii=False) + "\n")
        say_written("As JSON", path.with_suffix(".json"))
    if prediction.text is not None:
        write_text(path.with_suffix(".txt"), prediction.text)
        say_written("All of it", path.with_suffix(".txt"))


def see(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="The report; report.html in the folder if left out.")] = None,
) -> None:
    """Write report.html: tables, attention maps and curves of one run or many, in one file."""
    from foveal.runs import found_runs

    found_runs(runs)  # before the slow imports
    with quick_imports():
        from foveal.tasks.report import report

    say_written("Open it in a browser", report(runs[0] if len(runs) == 1 else runs, out))


def _free(stem: str) -> Path:
    """A picture's name beside which nothing of an earlier prediction is overwritten."""
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    taken = (".png", ".json", ".txt")
    return Path(next(name for name in names if not any(Path(name + ending).exists() for ending in taken)) + ".png")


def _task_options(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split inputs from options ``--name value`` of the task; an option that is given again becomes a list.

    >>> _task_options(["photo.png", "--label", "cow", "--label", "dog"])
    (['photo.png'], {'label': ['cow', 'dog']})
    """
    positional: list[str] = []
    options: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--") or word == "--":
            positional.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise UserError(f"{word} needs a value: {word} VALUE")
            value = following
        options.setdefault(name.replace("-", "_"), []).append(value)
    return positional, {name: values[0] if len(values) == 1 else values for name, values in options.items()}


def _show_result(result: dict[str, Any]) -> None:
    from foveal.metric_info import metric_info
    from foveal.see.page.phrases import step_time

    say(f"{result['title']} on {result['dataset']}: {result['data']}")
    published = result.get("published") or {}
    notes = result.get("notes") or {}
    for key, value in result["metrics"].items():
        if value is None:
            if key in notes:
                say(f"  {key:30} undefined   ({notes[key]})")
            continue
        info = metric_info(key, result["infos"].get(key))
        caveat = ", on other data" if result["embedded"] else ""
        paper = f"   (published {info.with_unit(published[key], 2)}{caveat})" if key in published else ""
        parts = {part: number for part, number in result["parts"].get(key, {}).items() if number is not None}
        split = ", ".join(f"{part} {info.with_unit(number, 2)}" for part, number in parts.items())
        say(f"  {key:30} {info.with_unit(value, 2):>9}{paper}" + (f"   ({split})" if 0 < len(parts) <= 4 else ""))
    if result.get("step_seconds"):
        say(f"  {result['parameters']:,} parameters, {step_time(result['step_seconds'])}")


def _show_place(out: Path) -> None:
    say(f"Everything is in {out}; `foveal see {shlex.quote(str(out))}` makes a page of it.")
