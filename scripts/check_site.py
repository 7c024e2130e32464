"""Looks for what pages of the built documents load from other hosts: ``check_site.py FOLDER``.

Links to other hosts may lead anywhere, those within the site to a page of it, and to a place there.
Scripts, styles, pictures and fonts must be files of the site, and nothing may be there for which
the theme's own script loads a library, as it does for Mermaid charts.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "audio": {"src"},
    "embed": {"src"},
    "iframe": {"src"},
    "image": {"href", "xlink:href"},
    "img": {"src", "srcset"},
    "link": {"href"},
    "object": {"data"},
    "script": {"src"},
    "source": {"src", "srcset"},
    "track": {"src"},
    "use": {"href", "xlink:href"},
    "video": {"src", "poster"},
}
"""The attributes by which a browser loads something before anybody clicks."""
LOADS_LATER = {"mermaid", "glightbox", "pyodide"}
"""Classes for which the theme's script loads a library from elsewhere."""
ASKED_FOR = "source"
"""The component for which it asks a code host how many stars the repository has."""
ELSEWHERE = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)


class _Page(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: set[str] = set()
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        of_page = tag == "link" and given.get("rel") in {"canonical", "alternate", "next", "prev"}
        for name in set() if of_page else LOADED.get(tag, set()):
            if ELSEWHERE.match(given.get(name, "")):
                self.found.append(f"<{tag} {name}> {given[name]}")
        classes = set(given.get("class", "").split())
        self.found += [f"class {name}" for name in sorted(LOADS_LATER & classes)]
        if given.get("data-md-component") == ASKED_FOR:
            self.found.append(f"component {ASKED_FOR}")


def loaded_from_elsewhere(site: Path) -> list[str]:
    """What pages and styles below ``site`` load from other hosts, each behind its file's name."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix not in {".html", ".css", ".svg"}:
            continue
        text = path.read_text(encoding="utf-8")
        page = _Page()
        if path.suffix != ".css":
            page.feed(text)
        found += [f"{path.relative_to(site)}: {what}" for what in page.found]
        found += [f"{path.relative_to(site)}: {what}" for what in IN_STYLES.findall(text)]
    return found


def broken_links(site: Path) -> list[str]:
    """Links of pages below ``site`` that lead to no file of it, or to no place in a page."""
    pages = {}
    for path in site.rglob("*.html"):
        pages[path.resolve()] = page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
    found = []
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            within = site.resolve() / parts.path.lstrip("/")
            to = within if parts.path.startswith("/") else path.parent / unquote(parts.path)
            to = (to if parts.path else path).resolve()
            to = to / "index.html" if to.is_dir() else to
            place = unquote(parts.fragment)
            known = pages[to].places if to in pages else set()
            if not to.exists() or (place and to in pages and place not in known):
                found.append(f"{path.relative_to(site.resolve())}: {link}")
    return found


if __name__ == "__main__":
    if not any(Path(sys.argv[1]).rglob("*.html")):
        sys.exit(f"no page is in {sys.argv[1]}")
    if elsewhere := loaded_from_elsewhere(Path(sys.argv[1])):
        sys.exit("\n".join(["These pages load files from other hosts:", *elsewhere]))
    if broken := broken_links(Path(sys.argv[1])):
        sys.exit("\n".join(["These links lead nowhere:", *broken]))
