"""How a notebook cell shows what the other files return: HTML that carries everything it needs."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO

import pandas as pd
from matplotlib.figure import Figure

DOTS_PER_INCH = 160


@dataclass(frozen=True)
class Shown:
    """A piece of HTML that Jupyter and nbconvert show as such. Pieces can be added up."""

    markup: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.markup

    def __add__(self, other: Shown) -> Shown:
        return Shown(f"{self.markup}\n{other.markup}")


def table(data: pd.DataFrame, caption: str = "", otherwise: str = "") -> Shown:
    """A table that scrolls sideways where it is too wide, under its first column. ``otherwise``: said of an empty one."""
    if not len(data):
        return text(otherwise)
    head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in data.columns)
    rows = "\n".join(f"<tr>{_row(values)}</tr>" for values in data.itertuples(index=False))
    under = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    body = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    kind = "table prose" if _is_prose(data) else "table"
    return Shown(f'<figure class="{kind}"><div class="scroll" tabindex="0">{body}</div>{under}</figure>')


def _row(values: Sequence) -> str:
    first, *rest = (html.escape(str(value)) for value in values)
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{value}</td>" for value in rest)


def _is_prose(data: pd.DataFrame) -> bool:
    """Sentences are set to the left and wrapped, figures to the right and never broken."""
    return max(data.iloc[:, 1:].astype(str).map(len).max(), default=0) > 40


def figure(drawn: Figure | None, caption: str, otherwise: str = "") -> Shown:
    """A figure with its caption, the image inside the page. ``otherwise``: said when there is nothing to draw."""
    if drawn is None:
        return text(otherwise)
    file = BytesIO()
    drawn.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    data, said = base64.b64encode(file.getvalue()).decode(), html.escape(caption)
    image = f'<img alt="{said}" src="data:image/png;base64,{data}">'
    return Shown(f"<figure>{image}<figcaption>{said}</figcaption></figure>")


def text(*sentences: str, kind: str = "") -> Shown:
    """A paragraph each; none for an empty one."""
    mark = f' class="{kind}"' if kind else ""
    return Shown("\n".join(f"<p{mark}>{html.escape(sentence)}</p>" for sentence in sentences if sentence))


def heading(title: str) -> Shown:
    return Shown(f"<h1>{html.escape(title)}</h1>")


def code(lines: str) -> Shown:
    return Shown(f'<pre class="command" tabindex="0"><code>{html.escape(lines)}</code></pre>')
