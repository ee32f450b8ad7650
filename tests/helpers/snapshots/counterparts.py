"""The page of the functions of numpy and torch, and what they are here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))

from reference_pages.counterparts import page as page
