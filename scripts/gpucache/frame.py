# SPDX-License-Identifier: BSD-2-Clause
"""Frames of call paths, for people: their names, and which of them is the code that asked.

A symbol of C++ says namespaces, arguments, and arguments of templates. Its short name is its last
two parts, as profilers show it: DeviceCachingAllocator::alloc_block.

The frames of an allocator are on each path, so they cannot be the name of a call site. The rule,
for all that is shown:
- If the path has frames of Python, the innermost of them is the code that asked.
- Otherwise it is the innermost frame that is no plumbing. Plumbing is a function of PLUMBING; and a
  frame without a name, in the library of the innermost frame: of such a library one knows only what
  it exports.
- If all frames are plumbing, as on a path that was cut off, it is the innermost frame.
A function with a name, in a library that the table does not know, is never left out: in a program
that is made of libraries such functions are the program.

Of the callers no plumbing is told, and of those in Python none of a framework's own functions, such
as Module._call_impl, if there are others."""
import functools
import re

NAME_MOST = 80      # letters of a short name
READ_MOST = 20_000  # of a name; those of templates are long
PARTS = 2           # of it
# What frameworks put between the code that wants memory and the driver, by the qualified name
# without unnamed namespaces.
PLUMBING = re.compile(
    # PyTorch: the allocator, the dispatch of operators, and how an operator makes its result.
    r"c10::|at::TensorIteratorBase::|at::(?:\w+::)*_*(?:wrapper_CUDA_\w*)?"
    r"(?:empty|resize|create_out|set_output)|"
    r"torch::(?:unwind::|CapturedTraceback::|cuda::gather)|"    # it notes call paths
    r"rmm::|thrust::|cub::|"
    r"(?:tsl|tensorflow|xla|stream_executor)::\w*Allocator|"    # TensorFlow, JAX
    r"cuda(?:Malloc|Mem)|cuMem(?:Alloc|Create)|__cudart|libcudart_static_")  # a linked-in runtime
OPERATOR = re.compile(r"operator(?: *(?:\(\)|\[\]|<=>|->\*?|<<=?|>>=?|[<>]=?|[^\w\s(<>]+)| [^(<]+"
                      r"(?:<[^()]*>[^()<>]*)?) *")
QUALIFIER = re.compile(r" (?:const|volatile|noexcept|&&?)(?= const| volatile| &| \[clone|::|$)")
RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
CLOSES = {"(": ")", "<": ">", "{": "}", "[": "]"}
LOCAL = "{", "'lambda", "operator()"  # with these a part begins that is no name by itself


def _behind(words, at):
    """The place behind what a bracket at a place begins; the end, if nothing ends it."""
    opens, closes, depth = words[at], CLOSES[words[at]], 0
    while at < len(words):
        letter = words[at]
        if letter == opens:
            depth += 1
        elif letter == closes and words[at - 1] != "-":  # no ->
            depth -= 1
            if not depth:
                return at + 1
        elif letter == "(" and opens == "<":  # in there a > may be anything
            at = _behind(words, at) - 1
        at += 1
    return len(words)


@functools.lru_cache(maxsize=1 << 12)
def parts(function):
    """The parts of a qualified name, without arguments, what it returns, and unnamed namespaces."""
    words, found, at = RUST_HASH.sub("", function[:READ_MOST]), [""], 0
    while at < len(words):
        letter, its = words[at], None
        if letter == "o" and not found[-1]:
            its = OPERATOR.match(words, at)
        elif letter == " ":
            its = QUALIFIER.match(words, at)
        if its:
            found[-1] += its[0].strip() if letter == "o" else ""
            at = its.end()
        elif words.startswith("::", at):
            found.append("")
            at += 2
        elif letter == "(" and words[at + 1:at + 2] in ("*", "&"):  # it returns a function
            found = [""]
            at += 2
        elif letter in CLOSES:
            behind = _behind(words, at)
            if letter == "{":
                found[-1] += "{" + re.split("[(#}]", words[at:behind].lstrip("{"))[0] + "}"
            at = behind
        else:
            if letter == " " and words[at + 1:at + 2] != "[":  # before it was what is returned
                found = [""]
            elif letter not in " )":
                found[-1] += letter
            at += 1
    return [part for part in found if part]


def short(function):
    """The last parts of a name."""
    found = parts(function)
    first = max(0, len(found) - PARTS)
    while first and found[first].startswith(LOCAL):
        first -= 1
    words = "::".join(found[first:]) or function
    return words if len(words) <= NAME_MOST else words[:NAME_MOST - 1] + "…"


@functools.lru_cache(maxsize=1 << 12)
def is_plumbing(function):
    return PLUMBING.match("::".join(parts(function))) is not None


def callers(places):
    """Those of the places, from the caller of the code that asked outwards, that are told."""
    python = [its for its in places if its.is_python]
    return [its for its in python if not is_framework(its.path)] or python or \
        [its for its in places if not is_plumbing(its.function)]


def is_framework(file):
    """Of Python."""
    return "/torch/" in file


def asked(places):
    """The number of the code that asked, in a list of places, the innermost first. A place has
    `function`, "" if it is not known, `object`, and `is_python`."""
    python = next((n for n, its in enumerate(places) if its.is_python), None)
    if python is not None:
        return python
    return next((n for n, its in enumerate(places) if not (
        is_plumbing(its.function) if its.function else its.object == places[0].object)), 0)
