"""Bundles as a stranger would change them: with a manifest that fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from onnxq.bundles.manifest import MANIFEST, entry_of


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    table = json.loads((bundle / MANIFEST).read_text())
    change(table)
    (bundle / MANIFEST).write_text(json.dumps(table))


def sign_again(bundle: Path, name: str) -> None:
    """Let the manifest say what is in a file by now."""
    edit(bundle, lambda t: t["files"].update({name: msgspec.to_builtins(entry_of(bundle / name))}))
