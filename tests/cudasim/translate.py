"""The few things of CUDA C++ that C++ macros cannot express, rewritten in preprocessed source.

    __shared__ T x[N];          becomes  a reference to N values of T in the arena of the current block
    extern __shared__ T x[];    becomes  a pointer to the block's dynamic shared memory
    __global__ void f(...) {    becomes  a function that reports its __launch_bounds__ and __cluster_dims__

Working after the preprocessor means that macros, comments and includes need no thought. No line is added or
removed, so compiler and sanitizer reports keep pointing into the kernel's source.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"\b(__shared__|__global__)\b")
_LINE_MARKER = re.compile(r'^# \d+ ".*$', re.MULTILINE)
_ALIGNMENT = re.compile(r"(?:__attribute__\s*\(\s*\(\s*(?:__)?aligned(?:__)?|alignas)\s*\(")
_DECLARATOR = re.compile(r"(.*[\s*&>])?([A-Za-z_]\w*)\s*(\[.*\])?", re.DOTALL)
_KERNEL_HEAD = re.compile(r"\s*(void|static|inline|__launch_bounds__|__cluster_dims__|__attribute__)\b")
_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*")
_EXTERN_C = re.compile(r'extern\s+"C"')


class TranslationError(ValueError):
    """A declaration in a form that the translator does not read."""


def translate(text: str) -> tuple[str, list[str]]:
    """The C++ for a preprocessed CUDA source, and the names of its extern "C" kernels."""
    pieces: list[str] = []
    kernels: list[str] = []
    done = 0
    while match := _WORD.search(text, done):
        start = _statement_start(text, done, match.start())
        pieces.append(text[done:start])
        if match[1] == "__shared__":
            end = _find_top_level(text, match.end(), ";") + 1
            pieces.append(_shared(text[start : match.start()] + text[match.end() : end - 1], text[start:end]))
            done = end
        else:
            head, done, name = _kernel(text, match.end())
            prefix = text[start : match.start()]
            pieces.append(prefix + head)
            if name and "template" not in prefix and (_EXTERN_C.search(prefix) or _in_extern_c(text, start)):
                kernels.append(name)
    pieces.append(text[done:])
    return "".join(pieces), list(dict.fromkeys(kernels))


def _statement_start(text: str, low: int, position: int) -> int:
    """Just after the end of the statement, block or preprocessor line before `position`."""
    start = max(low, *(text.rfind(mark, low, position) + 1 for mark in ";{}"))
    for marker in _LINE_MARKER.finditer(text, start, position):
        start = marker.end()
    return start


def _find_top_level(text: str, position: int, wanted: str) -> int:
    """The first of the `wanted` characters outside of brackets."""
    depth = 0
    for i in range(position, len(text)):
        if depth == 0 and text[i] in wanted:
            return i
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
    raise TranslationError(f"no {wanted!r} after {text[position : position + 60]!r}")


def _closing(text: str, opening: int) -> int:
    """Just after the bracket that closes the one at `opening`."""
    return _find_top_level(text, opening + 1, ")]}") + 1


def _split_declarators(text: str) -> list[str]:
    """At the commas outside of brackets and template arguments."""
    parts, depth, angles, last = [], 0, 0, 0
    for i, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and character in "<>":
            angles += 1 if character == "<" else -1
        elif character == "," and depth == angles == 0:
            parts.append(text[last:i])
            last = i + 1
    return [*parts, text[last:]]


def _shared(declaration: str, original: str) -> str:
    newlines = original.count("\n")
    markers = _LINE_MARKER.findall(original)
    declaration = " ".join(_LINE_MARKER.sub("", declaration).split())
    alignment = "0"
    while match := _ALIGNMENT.search(declaration):
        inner_end = _closing(declaration, match.end() - 1)
        alignment = declaration[match.end() : inner_end - 1]
        end = inner_end if match[0].startswith("alignas") else declaration.index("))", inner_end) + 2
        declaration = declaration[: match.start()] + declaration[end:]
    declaration, dynamic = re.subn(r"\bextern\b", "", declaration)
    declaration = re.sub(r"\bstatic\b", "", declaration).strip()

    statements = []
    base = ""
    for part in _split_declarators(declaration):
        parsed = _DECLARATOR.fullmatch(part.strip())
        if parsed is None:
            raise TranslationError(f"shared variable not understood: {original.strip()!r}")
        own_type, name, dimensions = parsed[1] or "", parsed[2], parsed[3] or ""
        if not base:
            base = own_type.rstrip("*& ")
            own_type = own_type[len(base) :]
        kind = f"{base} {own_type}".strip()
        if dynamic:
            statements.append(
                f"{kind} *const {name} = static_cast<{kind} *>(::sim::dynamic_shared({alignment}));"
            )
        else:
            statements.append(
                f"static ::sim::SharedSlot sim_slot_{name}; "
                f"auto &{name} = ::sim::shared_variable<{kind} {dimensions}>(sim_slot_{name}, {alignment});"
            )
    tail = "\n" * (newlines - len(markers)) + "".join(f"\n{marker}" for marker in markers)
    return " " + " ".join(statements) + tail


def _kernel(text: str, position: int) -> tuple[str, int, str | None]:
    """Return what replaces a kernel's head after `__global__`, the head's end, and a plain kernel's name."""
    limits = {"__launch_bounds__": "0", "__cluster_dims__": "0"}
    kept = ""
    while match := _KERNEL_HEAD.match(text, position):
        position = match.end()
        if match[1] in ("void", "static", "inline"):
            kept += match[0]
            continue
        end = _closing(text, text.index("(", position))
        if match[1] in limits:
            limits[match[1]] = f"::sim::{match[1].strip('_')}{' '.join(text[position:end].split())}"
            kept += "\n" * text.count("\n", match.start(), end)
        else:
            kept += text[match.start() : end]
        position = end
    named = _NAME.match(text, position)
    if named is None:
        raise TranslationError(f"kernel not understood: {text[position : position + 60]!r}")
    parameters = text.index("(", named.end())
    body = _find_top_level(text, _closing(text, parameters), "{;")
    head = kept + text[position : body + 1]
    if text[body] == "{":
        head += f" ::sim::enter_kernel({limits['__launch_bounds__']}, {limits['__cluster_dims__']});"
    specialised = text[named.end() : parameters].strip() != ""
    return head, body + 1, None if specialised or text[body] == ";" else named[1]


def _in_extern_c(text: str, position: int) -> bool:
    """Does an `extern "C" {` that is still open precede `position`?"""
    block = text.rfind('extern "C" {', 0, position)
    return block >= 0 and text.count("{", block, position) > text.count("}", block, position)
