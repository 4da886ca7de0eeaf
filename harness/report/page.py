"""From an executed notebook to one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import html
from pathlib import Path

CSS = Path(__file__).with_name("page.css")

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page(notebook: Path, title: str) -> str:
    """The notebook's text and outputs, without its code, in a page of our own."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="basic", anchor_link_text="")
    for part in ("input", "input_prompt", "output_prompt"):
        setattr(exporter, f"exclude_{part}", True)
    body, _ = exporter.from_filename(str(notebook))
    return PAGE.format(title=html.escape(title), css=CSS.read_text(encoding="utf-8"), body=body.strip())
