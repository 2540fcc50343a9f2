"""A notebook, as it was run, as a page: text, code, printed output and images."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Its Markdown, and its images by name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source:
            parts.append(f"```python\n{source}\n```")
            for output in cell["outputs"]:
                parts += _output(output, f"{path.stem}_{number}_{len(images)}", images)
    where = f"This page is the notebook `notebooks/{path.name}`, as it was run."
    parts.insert(1, f"*{where}*")
    return "\n\n".join(parts) + "\n", images


def _output(output: dict[str, Any], name: str, images: dict[str, bytes]) -> list[str]:
    data = output.get("data", {})
    for kind, suffix in (("image/png", "png"), ("image/gif", "gif")):
        if kind in data:
            images[f"{name}.{suffix}"] = base64.b64decode("".join(data[kind]))
            return [f"![output]({name}.{suffix})"]
    text = "".join(output.get("text", data.get("text/plain", "")))
    return [f"```text\n{text.rstrip()}\n```"] if text.strip() else []
