"""Property tests have no deadline: the machine may be busy. ``coco_reference`` is importable by the tests here."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
