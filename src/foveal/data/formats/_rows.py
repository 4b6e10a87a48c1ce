"""Text files with a few words a line, which say the labels of images in several datasets."""

from __future__ import annotations

from pathlib import Path

from foveal.errors import DataError


def read_lines(path: Path) -> list[str]:
    """Lines of a text file; blank ones do not count."""
    return [line.strip() for line in _lines(path) if line.strip()]


def read_rows(path: Path, columns: int) -> list[list[str]]:
    """Rows of a text file with at least ``columns`` words a line; blank lines do not count."""
    lines = _lines(path)
    rows = [line.split() for line in lines]
    for number, row in enumerate(rows, 1):
        if row and len(row) < columns:
            raise DataError(f"{path} line {number}: expected {columns} words, got {lines[number - 1]!r}")
    return [row for row in rows if row]


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; it comes with the official archive") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); get it again") from error
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} is empty; get it again")
    return lines
