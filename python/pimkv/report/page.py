"""One HTML page with everything inside: tables, figures and the row map. It loads nothing and sends nothing.

Its Content-Security-Policy names the one script and the one style sheet by their hashes and allows nothing else
but images that are part of the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from importlib.metadata import version
from string import Template

from pimkv.report.drawn import Drawn, Table
from pimkv.report.rowmap import Recording, origin, page_data
from pimkv.report.tables import Row

SCRIPTS = ("tape.js", "rowmap.js", "page.js")
RECORD = "pimkv run --allocator {kind} --record-placement {kind}.placement"


def page(
    *,
    title: str,
    sources: str,
    recordings: Sequence[Recording] = (),
    tables: Sequence[Table] = (),
    plots: Sequence[Drawn] = (),
    left_out: Sequence[str] = (),
) -> str:
    """The page as text. `left_out` says which figures there are no data for, and how to get them."""
    style, script = _asset("page.css"), "".join(map(_asset, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [_row_map(recordings) if recordings else _no_row_map()]
    if plots or left_out:
        sections.append(_figures(plots, left_out))
    sections += map(_table_section, tables)
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        sources=escape(sources),
        version=escape(version("pimkv")),
        policy=policy,
        style=style,
        script=script,
        sections="\n".join(sections),
        placements=_inside_script(page_data(recordings)) if recordings else '{"recordings": []}',
    )


def _row_map(recordings: Sequence[Recording]) -> str:
    lines = "\n".join(origin(recording) for recording in recordings)
    return Template(_asset("rowmap.html")).substitute(origins=f"<pre><code>{escape(lines)}</code></pre>")


def _no_row_map() -> str:
    how = "\n".join(RECORD.format(kind=kind) for kind in ("paged", "pim-aware"))
    how += "\npimkv report --placement paged.placement --placement pim-aware.placement --out report"
    return (
        '<section id="row-map"><h2>Row map</h2><p>No recorded placement was given, so there is no map of who '
        f"lies where. To record two and show them side by side:</p><pre><code>{escape(how)}</code></pre></section>"
    )


def _table_section(table: Table) -> str:
    def line(tag: str, cells: Row) -> str:
        kinds = [' class="words"' if i < table.words else "" for i in range(len(cells))]
        return "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )

    body = "\n".join(f"<tr>{line('td', row)}</tr>" for row in table.rows)
    return (
        f"<section><h2>{escape(table.title)}</h2><p>{escape(table.note)}</p>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table><thead>'
        f"<tr>{line('th', table.head)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div></section>"
    )


def _figures(plots: Sequence[Drawn], left_out: Sequence[str]) -> str:
    parts = [_figure(plot) for plot in plots]
    if left_out:
        items = "".join(f"<li>{escape(line)}</li>" for line in left_out)
        parts.append(f"<h3>Left out for want of data</h3><ul>{items}</ul>")
    return f'<section id="figures"><h2>Figures</h2>{"".join(parts)}</section>'


def _figure(plot: Drawn) -> str:
    light, dark = (
        f"data:image/svg+xml;base64,{base64.b64encode(plot.files[scheme]).decode()}"
        for scheme in ("light", "dark")
    )
    spec = f"<details><summary>the sweep</summary><pre><code>{escape(plot.spec)}</code></pre></details>"
    return (
        f'<figure class="plot"><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(plot.title)}"></picture><figcaption><strong>{escape(plot.title)}.'
        f"</strong> {escape(plot.caption)}<pre><code>{escape(plot.command)}</code></pre>{spec * bool(plot.spec)}</figcaption></figure>"
    )


def _asset(name: str) -> str:
    return resources.files("pimkv.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _inside_script(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
