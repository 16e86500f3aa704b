"""Lets pages of the site and pages of the repository be the same files.

A page links to files of the repository by relative paths, which work wherever the repository is
browsed. In the site,

- files in `benchmarks/results`, pictures and records, are copied to `results/` when it is built;
- `CONTRIBUTING.md` and `CHANGELOG.md` become pages;
- links to other files, such as sources, become their text.

A link to a file that does not exist is left as it is, which `mkdocs build --strict` reports.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
RESULTS = "benchmarks/results"

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^):#]+)(?P<anchor>#[^)]*)?\)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's own pages, and the results of benchmarks."""
    for origin, name in PAGES.items():
        content = (ROOT / origin).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=content))
    for path in sorted((ROOT / RESULTS).iterdir()):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Make links to files of the repository links within the site, but not in code blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_links(markdown[end : fence.start()], page), fence.group()]
        end = fence.end()
    return "".join([*parts, _links(markdown[end:], page)])


def _links(text: str, page: Page) -> str:
    here = page.file.src_uri
    origins = {name: origin for origin, name in PAGES.items()}
    folder = posixpath.dirname(origins.get(here, f"docs/{here}"))

    def replace(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link["path"]))
        if path.startswith("docs/"):
            target = path.removeprefix("docs/")
        elif path in PAGES:
            target = PAGES[path]
        elif path.startswith(f"{RESULTS}/"):
            target = f"results/{posixpath.basename(path)}"
        elif (ROOT / path).exists():
            return link["text"]
        else:
            return link.group()
        relative = posixpath.relpath(target, posixpath.dirname(here) or ".")
        return f"{link['image']}[{link['text']}]({relative}{link['anchor'] or ''})"

    return LINK.sub(replace, text)
