"""The site: `pip install . --group docs`, then `sphinx-build -W docs OUT`.

Docstrings are plain text with Google's sections, not reStructuredText: `marked_up` escapes them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version as version_of
from pathlib import Path

from docutils.nodes import reference
from sphinx.addnodes import desc_addname, desc_signature, index, pending_xref
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.transforms import SphinxTransform

import polygpu.dask
import polygpu.testing  # noqa: F401  (documented, and imported by no other module)

autodoc_mock_imports = ["torch"]  # polygpu.torch is documented where PyTorch is not installed

project = "polygpu"
author = "the authors of polygpu"
copyright = author
version = release = version_of("polygpu")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery", "auto_gallery/*.[!r]*", "**/.ipynb_checkpoints"]
highlight_language = "none"  # of blocks without a language: formulas, drawings
nitpicky = True
nitpick_ignore_regex = [
    # names of other libraries, whose sites a build without a network cannot ask
    ("py:.*", r"(np|numpy|cupy|torch|dask|hypothesis|strategies|st|collections|fractions|os|io)\..*"),
    # names in signatures that reference/index.md explains
    (
        "py:.*",
        "Array|Axis|Batch|Bytes|Chunks|Domain|Kind|Order|Polynomials|Precision|Product|Report|Rounding|Scheme|Seed"
        "|Tensor",
    ),
    ("py:class", r"polygpu\._core\.reporting\.Progress|Fraction"),
]

# ---- pages in MyST; those with code cells are run

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "force"  # a cache would show what an older polygpu printed
nb_execution_raise_on_error = True
nb_execution_timeout = 180
nb_merge_streams = True
# values by their line: their tables have formulas, which notebooks draw and a page without MathJax does not
nb_mime_priority_overrides = [("*", "text/html", 120), ("*", "text/latex", 130)]

# ---- the reference

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
smartquotes_action = "D"  # dashes alone: "coef" is code
_SECTIONS = Config(napoleon_use_rtype=False)

# ---- the gallery

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"/plot_",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
}

# ---- looks

html_theme = "pydata_sphinx_theme"
html_title = "polygpu"
html_static_path = ["_static"]
html_css_files = ["polygpu.css"]
html_favicon = "_static/polygpu.svg"
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"**": ["sidebar-nav-bs"]} | {page: [] for page in ("index", "glossary", "questions")}
html_theme_options = {
    "logo": {
        "text": "polygpu",
        "image_light": "_static/polygpu.svg",
        "image_dark": "_static/polygpu-dark.svg",
    },
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_toc_level": 2,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "bw",
    "pygments_dark_style": "bw",
}
copybutton_exclude = ".linenos, .gp, .go"

# ---- docstrings: plain text, to reStructuredText

_LABELS = re.compile(r"(?<![\w`])(Cost|Raises|Returns|Source|Sources)(?=:\s+\S)|^(Raises|Returns)(?= \w)")
_SECTION = re.compile(r"(Args|Returns|Raises):$")


def _linked(name: str, module: str) -> str:
    """Mark up what stands between backticks: a link if it names what the reference has, else code."""
    is_name = "." in name or "(" in name or name[:1].isupper()  # others are parameters, or names of others
    for full in (f"polygpu.{name.removeprefix('pg.')}", f"{module}.{name}", name) if is_name else ():
        full = full.removesuffix("()")
        value = sys.modules.get("polygpu")
        for part in full.split(".")[1:]:
            value = getattr(value, part, None)
        if full.startswith("polygpu.") and (inspect.isroutine(value) or inspect.isclass(value)):
            return f":py:obj:`{name} <{full}>`"
    return f"``{name}``"


def _escaped(line: str, module: str) -> str:
    """Escape a line of prose: no character of it is markup but pairs of backticks."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        raise ValueError(f"{module}: a single backtick in {line!r}")
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = _linked(part, module)
        else:
            plain = re.sub(r"([\\*|])|(?<=\w)_(?!\w)", r"\\\g<0>", part)
            parts[i] = _LABELS.sub(r"**\g<0>**", plain)
    return "".join(parts)


def _marked_up(lines: list[str], module: str) -> Iterator[str]:
    """Yield the lines with prose escaped.

    A block that is indented further than its section asks is literal.
    """
    base, was_empty, example, literal = 0, True, False, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            was_empty, example = True, False
            yield line
            continue
        if not indent:
            section = _SECTION.match(line)
            base = 0 if section is None else 4 if section[1] == "Returns" else 8
        example |= line.lstrip().startswith(">>>")
        literal = indent > base and not example and (literal or was_empty)
        if literal and was_empty:
            yield from (" " * base + "::", "")
        yield line if example or literal else _escaped(line, module)
        was_empty = False


class Docstring(GoogleDocstring):
    """Sections as Google's, but what is returned has no type before a colon: annotations say it."""

    def _consume_returns_section(self, preprocess_types: bool = False) -> list[tuple[str, str, list[str]]]:
        return [("", "", self._dedent(self._consume_to_next_section()))]


def as_restructured_text(app, what, name, obj, options, lines: list[str]) -> None:
    """Turn a docstring into what autodoc wants, in place.

    The docstring of an attribute has no sections, and colons mean nothing in it.
    """
    module = getattr(obj, "__module__", None) or name
    lines[:] = _marked_up(lines, module)
    if what not in ("attribute", "property", "data"):
        lines[:] = Docstring(lines, _SECTIONS, app, what, name, obj, options).lines()


def without_folders(app, doctree) -> None:
    """Links to folders of the sources become plain text: the site has none. Those to files are downloads."""
    page = Path(app.env.doc2path(app.env.docname))
    for link in list(doctree.findall(pending_xref)):
        is_path = link["reftype"] == "myst" and link["refdomain"] != "doc"
        if is_path and (page.parent / link["reftarget"]).is_dir():
            link.replace_self(link.children)


_PRIVATE = re.compile(r"polygpu\._\w+\.(?:[a-z_]+\.)*")  # a module whose classes users get from functions


def _named(text: str) -> str:
    """Return a name, or an entry of the index, without a private module."""
    return re.sub(r" in polygpu\._\w+(?=\))", "", _PRIVATE.sub("", text))


class WithoutPrivateModules(SphinxTransform):
    """Name classes of private modules without the module: in signatures, the index and the search."""

    default_priority = 840  # before domains read the index, and before tables of contents are collected

    def apply(self, **options) -> None:
        """Change a page and what the Python domain knows of it."""
        for module in list(self.document.findall(desc_addname)):
            if _PRIVATE.match(module.astext()):
                module.parent.remove(module)
        for signature in self.document.findall(desc_signature):
            signature["ids"] = [_named(x) for x in signature["ids"]]
        for node in self.document.findall(index):
            entries = node["entries"]
            node["entries"] = [(kind, _named(x), _named(at), *more) for kind, x, at, *more in entries]
        objects = self.env.get_domain("py").objects
        for name, known in list(objects.items()):
            if _PRIVATE.match(known.node_id):
                del objects[name]
                shown = name if known.aliased else _named(name)  # an alias serves the links of annotations
                objects[shown] = known._replace(node_id=_named(known.node_id))


def without_private_titles(app, doctree, page: str) -> None:
    """Remove private modules from what links show under a pointer."""
    for link in doctree.findall(reference):
        if "reftitle" in link:
            link["reftitle"] = _named(link["reftitle"])


def setup(app) -> None:
    """Connect what docstrings and pages pass through."""
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("doctree-read", without_folders)
    app.add_transform(WithoutPrivateModules)
    app.connect("doctree-resolved", without_private_titles)
