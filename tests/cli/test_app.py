"""The commands by name, their exit statuses, errors in one line, and hints."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from fake_runs import write_run
from forked import run_command

import foveal
from foveal import cli
from foveal.errors import DivergedError, InterruptedRunError, RenamedWarning, RunError, TrainingError, UserError

MODULE = sys.modules[cli.main.__module__]  # foveal.cli.app is the application itself
COMMANDS = ("demo", "list", "train", "test", "predict", "see", "reproduce", "compare", "sites", "data", "bench")


LIGHT = [  # the last ones compute with NumPy
    "--help",
    "--version",
    "list",
    "list mechanisms",
    "data",
    "data voc2012",
    "data nosuch",
    "bench",
    "train nosuch",
    "test nosuch",
    "predict nosuch x.png",
    "see nosuch",
    "reproduce nosuch",
    "compare SOFT HARD",
    "compare rows.csv a b",
]


@pytest.mark.slow
def test_commands_that_need_no_model_do_not_import_torch(tmp_path):
    for title in ("SOFT", "HARD"):
        for seed in (0, 1):
            write_run(tmp_path / title / f"seed{seed}", title, seed=seed)
    rows = ["table,recipe,metric,unit,better,values", "t,a,accuracy,%,higher,0.1 0.2", "t,b,accuracy,%,higher,0.2 0.4"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    code = f"""if True:
        import sys
        from foveal.cli import main
        for command in {LIGHT}:
            sys.argv = ["foveal", *command.split()]
            try:
                main()
            except SystemExit:
                pass
            heavy = {{"torch", "lightning", "torchvision", "matplotlib", "timm", "scipy.stats"}}
            loaded = set(sys.modules) & (heavy if command.startswith("compare") else heavy | {{"numpy"}})
            assert not loaded, (command, loaded)
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert f" {command} " in done.stdout
    assert "unknown dataset 'nosuch'" in done.stderr
    assert "HARD − SOFT: accuracy" in done.stdout or "SOFT − HARD: accuracy" in done.stdout
    assert "b − a: accuracy" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(call, command):
    status, out, _ = call(command, "--help")
    assert status == 0
    assert "Usage" in out


def test_the_version(call):
    assert call("--version") == (0, f"foveal {foveal.__version__}\n", "")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UserError("a mistake"), 2),
        (RunError("a [red]mistake[/red]\n   in two lines"), 2),
        (TrainingError("went wrong"), 1),
        (DivergedError("no number"), 1),
        (InterruptedRunError("go on with: foveal train x"), 130),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 0),
    ],
)
def test_statuses(call, monkeypatch, error, status):
    def command():
        raise error

    monkeypatch.setattr(MODULE, "app", command)
    ended = call("anything")
    assert ended.status == status
    message = "stopped" if isinstance(error, KeyboardInterrupt) else " ".join(str(error).split())
    assert ended.err == ("" if status == 0 else f"foveal: {message}\n")


def test_a_bug_is_not_hidden(monkeypatch):
    def command():
        raise ZeroDivisionError

    monkeypatch.setattr(MODULE, "app", command)
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_hints_are_one_line_and_other_warnings_stay_as_they_are(call, monkeypatch):
    def command():
        warnings.warn("a is now called b [c]", RenamedWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)

    monkeypatch.setattr(MODULE, "app", command)
    with pytest.warns(UserWarning, match="something else") as others:
        ended = call("anything")
    assert ended == (0, "", "hint: a is now called b [c]\n")
    assert len(others) == 1


def test_a_former_name_is_followed_by_a_hint(call, tmp_path):
    words = ("train", "demo/hattnet-ctx", "train.epoch=3", "--out", tmp_path)
    status, out, err = call(*words)
    assert (status, out) == (2, "")
    hint, mistake = err.splitlines()
    assert hint == "hint: demo/hattnet-ctx is now called demo/refer/hattnet-ctx"
    assert "did you mean 'epochs'" in mistake


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["train", "hattnet/table1/mref-sfot"], "did you mean 'hattnet/table1/mref-soft'"),
        (["train", "hattnet/table1/mref-soft", "train.epoch=3"], "did you mean 'epochs'"),
        (["train", "hattnet/table1/mref-soft", "nonsense"], "expected key=value"),
        (["train", "hattnet/table1"], "name one of its cells: hattnet/table1/{mref"),
        (["train", "nowhere.yaml"], "no such recipe file"),
        (["test", "nowhere"], "there is no run folder nowhere"),
        (["predict", "nowhere", "x.png"], "there is no run folder nowhere"),
        (["see", "nowhere"], "nowhere is not a folder; give a run folder"),
        (["list", "modles"], "did you mean 'models'"),
        (["sites", "RESNET50"], "did you mean 'resnet50'"),
        (["sites", "resnet18", "--mechanism", "SE"], "did you mean 'se'"),
        (["data", "mreff"], "did you mean 'mref'"),
        (["data", "--data", "/nowhere/at/all"], "does not exist"),
        (["data", "check", "mreff"], "did you mean 'mref'"),
        (["data", "check", "mref", "digits"], "expected key=value"),
        (["data", "check", "mref", "digit=mnist"], "did you mean 'digits'"),
        (["data", "check", "mref", "digits=[mnist"], "is not a YAML value"),
        (["demo", "demo/refre"], "did you mean 'demo/refer'"),
        (["demo", "--jobs", "0"], "--jobs 0: expected at least one"),
        (["reproduce", "hattnet/table9"], "did you mean 'hattnet/table"),
        (["reproduce", "nowhere.yaml"], "no such recipe file"),
        (["reproduce", "hattnet/table1", "--seeds", "0"], "expected at least one"),
        (["reproduce", "hattnet/table1", "--finished", "--out", "nowhere"], "no run of hattnet/table1"),
        (["compare", "nowhere.csv", "a", "b"], "is not a file of `foveal reproduce --csv`"),
        (["bench", "referense"], "did you mean 'reference'"),
    ],
)
def test_mistakes_are_one_line_and_status_2(call, words, advice):
    status, _, err = call(*words)
    assert status == 2
    assert advice in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_process_of_its_own(tmp_path):
    """Exit status and streams as a shell sees them."""
    command = [str(Path(sys.executable).with_name("foveal")), "train", "hattnet/mref-sotf"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("foveal: unknown recipe 'hattnet/mref-sotf'; did you mean")
    assert done.stderr.count("\n") == 1
    done = run_command("train", "hattnet/mref-soft", "seed=x", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "hint: hattnet/mref-soft is now called hattnet/table1/mref-soft"
