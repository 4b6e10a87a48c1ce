"""The revision of foveal's source."""

import subprocess

from foveal.revision import revision


def test_the_revision_is_that_of_foveal_alone(tmp_path, monkeypatch):
    """Installed inside a repository of somebody else, it does not pass that one's revision for its own."""
    monkeypatch.delenv("FOVEAL_REVISION", raising=False)
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    file = tmp_path / "package" / "revision.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr("foveal.revision.__file__", str(file))
    assert revision() is None


def test_a_revision_is_dirty_if_the_package_was_edited(tmp_path, monkeypatch):
    monkeypatch.delenv("FOVEAL_REVISION", raising=False)
    file = tmp_path / "package" / "revision.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr("foveal.revision.__file__", str(file))

    def git(*words):
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    assert revision() == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "results.csv").write_text("a run wrote it")
    git("add", ".")
    assert revision() == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "package" / "own.py").write_text("of the user")
    assert revision() == git("rev-parse", "--short=12", "HEAD") + "-dirty"
    git("add", ".")
    git("commit", "-qm", "y")
    git("tag", "v0.2")
    assert revision() == "v0.2"
