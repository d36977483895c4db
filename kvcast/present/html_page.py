"""A self-contained HTML page from plain parts: headings, numbers, tables, figures. Dark, light and printed.

The one idea: every word passes through `html.escape` on its way in, and a content security policy forbids scripts and
fetches, so a name from a trace can do nothing and the page opens offline.

    >>> page("demo", [banner("met", "Meets the target.", "..."), section("Latency", figure(f, "ttft", "the definition"))])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;--good:#00704f;--bad:#b04300;--open:#9a5b86;--plain:#0072B2}
@media (prefers-color-scheme:dark){:root{--ground:#10141a;--ink:#e6edf3;--soft:#9aa5b1;--line:#303842;--card:#181e26;--good:#3fc79a;--bad:#f08c4a;--open:#CC79A7;--plain:#56B4E9}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1040px;padding:28px 24px 60px;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:23px;margin:0 0 2px}h2{font-size:18px;margin:34px 0 8px;padding-top:14px;border-top:1px solid var(--line)}h3{font-size:15px;margin:18px 0 0}
p{margin:6px 0}.soft{color:var(--soft)}.small{font-size:13px}
.banner{margin:16px 0;padding:12px 16px;border:1px solid var(--line);border-left:6px solid var(--plain);border-radius:6px;background:var(--card)}
.banner.met{border-left-color:var(--good)}.banner.missed{border-left-color:var(--bad)}.banner.not-shown{border-left-color:var(--open)}.banner strong{display:block;font-size:18px}
.caution{color:var(--bad)}.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:10px;margin:14px 0}
.card{padding:10px 14px;border:1px solid var(--line);border-radius:6px;background:var(--card)}.card b{display:block;font-size:22px;font-weight:600}
abbr{text-decoration:underline dotted;text-underline-offset:3px;cursor:help}
table{border-collapse:collapse;margin:8px 0;font-size:13.5px}th,td{padding:3px 14px 3px 0;border-bottom:1px solid var(--line);text-align:right;vertical-align:top}
th{font-weight:600;color:var(--soft)}td:first-child,th:first-child,table.words td,table.words th{text-align:left}.wide{overflow-x:auto}
svg{display:block;width:100%;height:auto;margin:2px 0 6px}.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(440px,1fr));gap:4px 26px}
pre{padding:10px 12px;background:var(--card);border:1px solid var(--line);border-radius:6px;font-size:12.5px;white-space:pre-wrap;overflow-wrap:anywhere}
pre.lines{white-space:pre;overflow-x:auto}
dt{font-weight:600;margin-top:8px}dd{margin:0 0 0 18px}
@media (max-width:560px){.figures{grid-template-columns:1fr}}
@media print{:root{color-scheme:light;--ground:#fff;--ink:#000;--soft:#444;--line:#bbb;--card:#fff}body{max-width:none;padding:0;font-size:11.5px}
pre.lines{white-space:pre-wrap}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}h2{break-after:avoid}.small{font-size:10px}.cards{grid-template-columns:repeat(4,1fr)}.card b{font-size:17px}.figures{grid-template-columns:1fr 1fr}.card,.banner,.figure,tr,dl div{break-inside:avoid}}
""".strip()


def page(title: str, parts: Iterable[str]) -> str:
    """The whole document. parts: HTML made by the functions below."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name="viewport"'
        ' content="width=device-width, initial-scale=1">'
    )
    return (
        "<!doctype html>\n<html"
        f' lang="en"><head>{head}<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n'
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def heading(title: str, below: str) -> str:
    return f'<h1>{escape(title)}</h1><p class="soft">{escape(below)}</p>'


def banner(state: str, headline: str, sentence: str, reasons: Sequence[str] = (), caution: str = "") -> str:
    """What a reader takes away. state: met, missed, not-shown or unknown."""
    told = "".join(f'<p class="soft small">{escape(reason[:1].upper() + reason[1:])}</p>' for reason in reasons)
    doubt = f'<p class="caution">▲ {escape(caution[:1].upper() + caution[1:])}.</p>' if caution else ""
    return (
        '<div class="banner'
        f' {escape(state)}"><strong>{escape(headline)}</strong><p>{escape(sentence)}</p>{told}{doubt}</div>'
    )


def term(label: str, definition: str) -> str:
    """A label with its definition on hover; the glossary has it for paper."""
    return f'<abbr title="{escape(definition, quote=True)}">{escape(label)}</abbr>' if definition else escape(label)


def card(label: str, value: str, definition: str = "", lines: Sequence[str] = ()) -> str:
    below = "".join(f'<span class="soft small">{escape(line)}</span><br>' for line in lines if line)
    return f'<div class="card"><span class="small">{term(label, definition)}</span><b>{escape(value)}</b>{below}</div>'


def cards(inner: Iterable[str]) -> str:
    return f'<div class="cards">{"".join(inner)}</div>'


def section(title: str, *parts: str) -> str:
    """Nothing at all where there is nothing to say."""
    told = "".join(parts)
    return f"<h2>{escape(title)}</h2>{told}" if told else ""


def figure(drawn: go.Figure, name: str, definition: str = "", caption: str = "") -> str:
    from kvcast.figures.svg import as_svg

    below = f'<p class="soft small">{escape(caption)}</p>' if caption else ""
    return (
        "<div"
        f' class="figure"><h3>{term(str(drawn.layout.title.text), definition)}</h3>{as_svg(drawn, name)}{below}</div>'
    )


def figures(inner: Iterable[str]) -> str:
    told = "".join(inner)
    return f'<div class="figures">{told}</div>' if told else ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], words: bool = False) -> str:
    """words: all columns to the left; else all but the first to the right."""
    if not rows:
        return ""
    top = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        "<div"
        f' class="wide"><table{" class=words" if words else ""}><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def paragraph(line: str, soft: bool = False) -> str:
    return f"<p{' class=soft' if soft else ''}>{escape(line)}</p>" if line else ""


def lines(inner: Iterable[str]) -> str:
    told = "".join(f"<li>{escape(line)}</li>" for line in inner)
    return f"<ul>{told}</ul>" if told else ""


def code(words: str) -> str:
    kind = ' class="lines"' if "\n" in words else ""  # a table's columns stay lined up; a long command wraps
    return f"<pre{kind}>{escape(words)}</pre>"


def glossary(terms: Iterable[tuple[str, str]]) -> str:
    return (
        "<dl>"
        + "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(meaning)}</dd></div>" for name, meaning in terms)
        + "</dl>"
    )
