"""Helpers beside these tests can be imported by name, also in child processes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
