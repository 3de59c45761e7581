"""Checks of the site: `sphinx-build -W docs OUT`, then `python tests/built_site.py OUT` with the same Sphinx.

Its links and their anchors, its pictures, and whether its search answers what people ask. Where Playwright
and a browser are installed, every page is opened in a window of a desktop and in one of a phone. No page may
be wider than its window, no picture may fail to load, and the browser's search must find what is computed
here. `--pictures FOLDER` keeps screenshots of the main pages.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

WIDTHS = {"desktop": (1440, 900), "phone": (390, 844)}
MAIN = (
    "index", "tutorials", "tutorials/first-product", "tutorials/ckks", "auto_gallery/index",
    "coming-from/seal", "coming-from/numpy", "reference/index", "reference/values", "reference/lattice",
    "reference/files", "how-it-works", "math", "kernels", "performance", "scale", "studies/fourstep",
    "questions", "glossary",
)  # fmt: skip

# What people ask, what the answer says, and the pages that give it. One of the first two pages found must.
QUESTIONS = {
    "how do I rotate": (r"rotate_many", "questions|reference/lattice|tutorials/ckks"),
    "which order is eval in": (r"[Bb]it-reversed", "questions|tutorials/rings"),
    "why is my product slow": (r"explain\(\)", "questions|tutorials/measuring"),
    "save to a file": (r"pg\.save", "questions|reference/files"),
    "use two GPUs": (r"pg\.devices", "questions|reference/devices|tutorials/scale"),
    "random polynomial from a seed": (r"random\(.*seed=", "questions|reference/samplers"),
    "rescale a ciphertext": (r"\brescale\(", "questions|reference/rns|tutorials/ckks"),
    "convert from SEAL": (r"from_residues", "questions|coming-from/seal"),
    "which root of unity": (r"[Ss]mallest", "questions|reference/rings"),
    "out of memory": (r"OutOfDeviceMemory", "questions|reference/devices"),
}


# ---- links and pictures


class Page(HTMLParser):
    """What a page offers (ids), points to (links) and shows (pictures and text)."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.pictures: list[str] = []
        self._text: list[str] = []
        self.feed(html)

    @property
    def text(self) -> str:
        return "".join(self._text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append(given.get("src", ""))

    def handle_data(self, data: str) -> None:
        self._text.append(data)


def read(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def broken(pages: dict[Path, Page]) -> Iterator[str]:
    """Links within the site, and pictures, that lead nowhere."""
    for path, page in pages.items():
        for link in page.links + page.pictures:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            anchor = unquote(url.fragment)
            if not target.is_file():
                yield f"{path}: {link}: no such file"
            elif anchor and target in pages and anchor not in pages[target].ids:
                yield f"{path}: {link}: no such anchor"


# ---- the search of _static/searchtools.js


class Search:
    """Sphinx's search in the browser with docs/_static/scorer.js: the documents it lists, best first."""

    TITLE, PARTIAL_TITLE, TERM, PARTIAL_TERM = 15, 7, 5, 2
    OBJECT, PARTIAL_OBJECT, PRIORITY = 11, 6, {0: 15, 1: 5, 2: -5}

    def __init__(self, site: Path) -> None:
        from sphinx.search.en import SearchEnglish

        text = (site / "searchindex.js").read_text()
        self.index: dict[str, Any] = json.loads(text[text.index("(") + 1 : text.rindex(")")])
        english = SearchEnglish({})
        self.stopwords, self.stem = english.stopwords, english.stem

    def documents(self, query: str) -> list[str]:
        names, titles = self.index["docnames"], self.index["titles"]
        headings = [(score + 20, file) for score, file in self._titles(query)]
        scored = [*headings, *self._objects(query), *self._terms(query)]
        best = sorted(scored, key=lambda x: (-x[0] - self._worth(names[x[1]]), titles[x[1]].lower()))
        return list(dict.fromkeys(names[file] for _, file in best))

    def _worth(self, page: str) -> int:
        records = re.match(r"(decisions|performance|studies/|auto_gallery/)", page)
        return 3 * (page == "questions") + 2 * page.startswith("reference/") - 11 * bool(records)

    def _titles(self, query: str) -> Iterator[tuple[float, int]]:
        asked = query.lower().strip()
        for title, places in self.index["alltitles"].items():
            if asked in title.lower().strip() and len(asked) >= len(title) / 2:
                for file, _ in places:
                    is_whole = self.index["titles"][file] == title
                    yield round(self.TITLE * len(asked) / len(title)) + is_whole, file

    def _objects(self, query: str) -> Iterator[tuple[float, int]]:
        words = set(re.findall(r"\w+", query.lower()))
        for prefix, entries in self.index["objects"].items():
            for file, kind, priority, _, name in entries:
                full = f"{prefix}.{name}".lower().lstrip(".")
                about = self.index["objnames"][str(kind)][2]
                all_of_it = f"{prefix} {name} {about} {self.index['titles'][file]}".lower()
                last = full.split(".")[-1]
                for word in words:
                    if word in full and all(other in all_of_it for other in words - {word}):
                        score = self.OBJECT if word in (full, last) else self.PARTIAL_OBJECT * (word in last)
                        yield score + self.PRIORITY.get(priority, 0), file

    def _terms(self, query: str) -> Iterator[tuple[float, int]]:
        words = [w for w in re.findall(r"\w+", query.lower()) if w not in self.stopwords and not w.isdigit()]
        stems = {self.stem(word) for word in words}
        scores: dict[int, dict[str, int]] = defaultdict(dict)
        for stem in stems:
            for place, whole, part in (
                ("terms", self.TERM, self.PARTIAL_TERM),
                ("titleterms", self.TITLE, self.PARTIAL_TITLE),
            ):
                terms = self.index[place]
                if stem in terms:
                    found = [(terms[stem], whole)]
                else:
                    found = [(files, part) for term, files in terms.items() if len(stem) > 2 and stem in term]
                for files, score in found:
                    for file in [files] if isinstance(files, int) else files:
                        scores[file][stem] = score
        needed = {len(stems), sum(len(stem) > 2 for stem in stems)}
        for file, of_file in scores.items():
            if len(of_file) in needed:
                yield max(of_file.values()), file


def unanswered(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    search = Search(site)
    for question, (answer, names) in QUESTIONS.items():
        found = search.documents(question)[:2]
        named = (name for name in found if re.fullmatch(names, name))
        if not any(re.search(answer, pages[site / f"{name}.html"].text) for name in named):
            yield f"{question!r} is not answered by {found}"


# ---- in a browser


def browser_of(playwright: Any) -> Any:
    """Chromium of this system, or the one that Playwright has installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    options = {"executable_path": path} if path else {}
    return playwright.chromium.launch(args=["--no-sandbox", "--disable-gpu"], **options)


def seen(site: Path, pages: Iterable[Path], pictures: Path | None) -> Iterator[str]:
    """What is wrong with pages in a browser; a first line says where there is none."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        print("no browser: pip install playwright; pages were not opened", flush=True)
        return
    with sync_playwright() as playwright:
        try:
            browser = browser_of(playwright)
        except Error as error:
            print(f"no browser: {str(error).splitlines()[0]}; pages were not opened", flush=True)
            return
        for name, (width, height) in WIDTHS.items():
            tab = browser.new_page(viewport={"width": width, "height": height})
            for path in pages:
                tab.goto(path.as_uri(), wait_until="load")
                yield from wrong(tab, f"{path.relative_to(site)} on a {name}")
                document = str(path.relative_to(site).with_suffix(""))
                if pictures is not None and document in MAIN:
                    pictures.mkdir(parents=True, exist_ok=True)
                    target = pictures / f"{document.replace('/', '-')}-{name}"
                    tab.screenshot(path=f"{target}.png")
                    tab.screenshot(path=f"{target}-whole.png", full_page=True)
            tab.close()
        yield from searched(browser, site)
        browser.close()


# What may scroll to the side: code, tables, plots, outputs. All else must fit.
SCROLLED = """() => [...document.querySelectorAll('body *')].filter(e =>
  e.scrollWidth > e.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(e).overflowX)
  && !e.matches('pre, .pst-scrollable-table-container, p:has(> img), .output')
).map(e => `${e.tagName} ${e.className}, ${e.scrollWidth} in ${e.clientWidth} pixels`)"""


def wrong(tab: Any, where: str) -> Iterator[str]:
    wide, window = tab.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    if wide > window:
        yield f"{where}: {wide} pixels wide in a window of {window}"
    for box in tab.evaluate(SCROLLED):
        yield f"{where}: wider than its box: {box}"
    tab.evaluate("() => document.querySelectorAll('img').forEach(i => i.loading = 'eager')")
    tab.wait_for_function("() => [...document.images].every(i => i.complete)")
    for source in tab.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)"):
        yield f"{where}: the picture {source} does not load"


def searched(browser: Any, site: Path) -> Iterator[str]:
    """Where the browser's first two pages are others than those computed here."""
    search, tab = Search(site), browser.new_page()
    for question in QUESTIONS:
        tab.goto(f"{(site / 'search.html').as_uri()}?q={quote(question)}")
        tab.wait_for_function("() => document.querySelector('.search-summary')?.innerText.includes('found')")
        tab.wait_for_timeout(300)  # results are listed one after the other
        links = tab.evaluate("[...document.querySelectorAll('ul.search li > a')].map(a => a.href)")
        paths = dict.fromkeys(unquote(urlsplit(link).path) for link in links)
        found = [str(Path(path).relative_to(site).with_suffix("")) for path in paths][:2]
        if found != search.documents(question)[: len(found)]:
            yield f"{question!r}: a browser finds {found}, not {search.documents(question)[:2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    site = options.site.resolve()
    pages = read(site)
    flaws = [*broken(pages), *unanswered(site, pages), *seen(site, pages, options.pictures)]
    print(*flaws, f"{len(pages)} pages, {len(flaws)} flaws", sep="\n")
    return 1 if flaws or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
