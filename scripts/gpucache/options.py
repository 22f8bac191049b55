# SPDX-License-Identifier: BSD-2-Clause
"""Names and values of the library's options, from the generated table. The library's own parser
(shim/option/parse.c) has the last word; what is refused here it refuses too, and what it refuses
is refused here. tests/tool compares the two."""
import difflib
import os
import re
import signal

from gpucache import tables, text
from gpucache.fault import USAGE, Fault

PREFIX = "GPUCACHE_"
NUMBER = r"[0-9]+(?:\.[0-9]+)?[ \t\r\n]*"
INTEGER = r"[0-9]+[ \t\r\n]*"
SIZE = NUMBER + r"(?:[kmgt](?:i?b)?|b|%|)"
TIME = NUMBER + r"(?:ms|s|m|min|h|)"
OFF = "0|off|no|none|false"
DEVICE = r"[0-9]+[ \t\r\n]*"

# The value of each type of options.def, blanks around it and the case of letters aside. LIST types
# are items between commas.
SIZES = r"(?:%s=[ \t\r\n]*)?(?:%%s)" % DEVICE
ITEMS = {
    "BYTES": SIZES % f"{SIZE}|none",
    "LIMIT": SIZES % f"{SIZE}|none|unlimited",
    "EMPTY_CACHE": rf"{OFF}|1|all|on|oom|every:[ ]*(?:{TIME})|device={DEVICE}|keep=(?:{SIZE})",
    "PARK": rf"{OFF}|ask|(?:idle|lend):[ ]*(?:{TIME})|retain:(?:{SIZE})",
    "GLOBS": r"[^,]+",
}
VALUES = {
    "SWITCH": f"{OFF}|1|on|yes|true",
    "SECONDS": f"{TIME}|none",
    "SIGNAL": rf"{OFF}|(?:sig)?(?:usr[12]|rtmin(?:\+{INTEGER})?)",
    "STATS": rf"{OFF}|exit(?:-json)?(?::.+)?",
    "LOG": r"(?:off|none|0|error|warning|warn|info|debug)(?::.+)?",
    "TRACE_STACKS": rf"{OFF}|0+|0*(?:[1-9]|[1-5][0-9]|6[0-4])(?:[ \t\r\n]*,[ \t\r\n]*python)?",
    "PATH": r".+",
    "PATTERN": r".+",
    "DIR": r".+",
    "PLACE": r"host|/.*",
}
PATTERNS = ("STATS", "LOG", "PATTERN")
FILES = ("PATH", "DIR", *PATTERNS)
BLANKS = " \t\r\n"
DEVICES_MAX = 64
ITEM_BYTES = 256
PLACE_BYTES = 256
TIMES_NS = {unit: round(seconds * 10**9) for unit, seconds in text.TIMES.items()}
TOO_MUCH = 1 << 64
AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]+))?[ \t\r\n]*([a-z%]*)", re.IGNORECASE)
NEAR = 0.6  # a name that is less like an option's is none that was mistyped
ROWS = {row["env"]: row for row in tables.OPTIONS}


POOLS = [row["env"] for row in tables.OPTIONS][:[*ROWS].index("GPUCACHE")]  # their options


def short(env):
    """MAX_IDLE of GPUCACHE_MAX_IDLE; GPUCACHE stays."""
    return env[len(PREFIX):] if env.startswith(PREFIX) else env


def flag(env):
    """--max-idle of GPUCACHE_MAX_IDLE. GPUCACHE itself is --enabled."""
    return "--" + ("enabled" if env == "GPUCACHE" else short(env).lower().replace("_", "-"))


def full(name):
    """The variable of an option's name, with or without the prefix, in any case. None: none."""
    name = name.upper().replace("-", "_")
    for env in (name, PREFIX + name):
        if env in ROWS:
            return env
    return None


# How the kind of a value is called where it is not called as its type.
KINDS = {"LIMIT": "SIZE", "BYTES": "SIZE", "SECONDS": "TIME", "GLOBS": "NAMES", "PATH": "FILE",
         "PATTERN": "FILE", "DIR": "FOLDER", "EMPTY_CACHE": "POLICY", "PARK": "WHEN",
         "STATS": "REPORT", "PLACE": "host|FOLDER",
         "LOG": "LEVEL", "SWITCH": "0|1", "TRACE_ON": "start|oom",
         "TRACE_STACKS": "N[,python]"}


def kind_of(row):
    """SIZE, TIME, SWITCH ...: the word that stands for the value of an option."""
    return KINDS.get(row["type"], row["type"])


def grammar(row):
    """What a value of this kind may be; what none means depends on the option."""
    return re.sub(r" \((?:0|no limit)\)$", "", row["allowed"])


def in_short(words):
    """The first sentence, without what is in brackets or follows a colon late in it."""
    words = re.sub(r" \([^)]*\)", "", re.split(r"\.(?: |$)", words)[0])
    return re.sub(r"(.{20}[^:]*): .*", r"\1", words)


def nearest(name, likeness):
    """The option whose name is most like this one, without prefix. None: none is so much like
    it."""
    bare = name.upper()[len(PREFIX):] if name.upper().startswith(PREFIX) else name.upper()
    return next(iter(difflib.get_close_matches(bare, [short(e) for e in ROWS], 1, likeness)), None)


def known(name):
    """As full, but a name that no option has is a fault."""
    env = full(name)
    if env:
        return env
    near = nearest(name, NEAR)
    hint = f"; the nearest is {near}" if near else ""
    raise Fault(f"there is no option {name}{hint}", USAGE)


def _matches(pattern, value):
    return re.fullmatch(f"(?:{pattern})", value, re.ASCII | re.IGNORECASE | re.DOTALL) is not None


def _is_short(item):
    """Does the library have room for it?"""
    return len(os.fsencode(item)) < ITEM_BYTES


def _integer(digits):
    """No more than TOO_MUCH: Python refuses to read thousands of digits."""
    digits = digits.lstrip("0")
    return min(int(digits or 0), TOO_MUCH) if len(digits) <= 20 else TOO_MUCH


def _decimal(words):
    """(whole, millionths, unit): the library drops what is below a millionth."""
    whole, fraction, unit = AMOUNT.match(words).groups()
    return _integer(whole), int((fraction or "0")[:6].ljust(6, "0")), unit.lower()


def _amount(words):
    """The nanoseconds of a time."""
    whole, millionths, unit = _decimal(words)
    return whole * TIMES_NS[unit] + TIMES_NS[unit] * millionths // 10**6


def _is_size_in_range(size):
    if size in ("none", "unlimited"):
        return True
    whole, millionths, unit = _decimal(size)
    if unit == "%":
        return whole * 10**6 + millionths <= 100 * 10**6
    factor = text.FACTORS[unit.rstrip("b").rstrip("i")]
    is_whole = factor > 1 or not millionths  # there are no parts of a byte
    return is_whole and whole * factor + factor * millionths // 10**6 < TOO_MUCH


def _is_in_range(kind, item):
    """Is the number in an item of a matching form one that the library can hold?"""
    head, equals, size = item.rpartition("=")
    head, size = head.strip(BLANKS), size.strip(BLANKS).lower()
    if kind == "EMPTY_CACHE" and item.lower().startswith("every:"):
        return 10**6 <= _amount(item[6:].strip(BLANKS)) < TOO_MUCH
    if kind == "PARK" and item.lower().startswith("retain:"):
        return "%" not in item and _is_size_in_range(item[7:].strip(BLANKS).lower())
    if kind == "PARK" and ":" in item:
        least = 10**9 if item.lower().startswith("lend") else 10**6
        return least <= _amount(item[5:].strip(BLANKS)) < TOO_MUCH
    if kind == "EMPTY_CACHE" and equals:
        if head.lower() == "device":
            return _integer(size) < DEVICES_MAX
        return "%" not in size and _is_size_in_range(size)
    if kind in ("BYTES", "LIMIT"):
        return not (equals and _integer(head) >= DEVICES_MAX) and _is_size_in_range(size)
    if kind == "SECONDS":
        return item.lower() == "none" or _amount(item) < TOO_MUCH
    if kind == "SIGNAL" and "+" in item:
        return _integer(item.partition("+")[2].strip(BLANKS)) <= signal.SIGRTMAX - signal.SIGRTMIN
    return True


def _is_value(row, value):
    kind = row["type"]
    if value == "":
        return True  # an empty variable counts as unset
    if kind in ITEMS:
        items = [item.strip(BLANKS) for item in value.split(",")]
        if not all(_is_short(item) and _matches(ITEMS[kind], item) and _is_in_range(kind, item)
                   for item in items):
            return False
        if kind == "GLOBS":
            return value.lower() != "none" and len(os.fsencode(value)) < 1024
        if kind in ("EMPTY_CACHE", "PARK"):
            off = [item for item in items if _matches(OFF, item)]
            return not off or len(items) == 1
        heads = [item.partition("=")[0].strip(BLANKS) if "=" in item else "" for item in items]
        heads = [_integer(h) if h else -1 for h in heads]
        return len(set(heads)) == len(heads)
    if kind in VALUES:
        if kind in FILES:
            return _matches(VALUES[kind], value)
        if kind == "PLACE":
            return _matches(VALUES[kind], value) and len(os.fsencode(value)) < PLACE_BYTES
        item = value.strip(BLANKS)
        return _is_short(item) and _matches(VALUES[kind], item) and _is_in_range(kind, item)
    # An enum: its words are in what the option takes.
    return value.strip(BLANKS).lower() in re.findall(r"\b(?!or\b)[a-z]+\b", row["allowed"])


def checked(name, value):
    """(variable, value) if the option exists and takes the value."""
    env = known(name)
    if "\0" in value or not _is_value(ROWS[env], value):
        raise Fault(f"{short(env)}={value} is not understood: it takes {ROWS[env]['allowed']}",
                    USAGE)
    return env, value


def pattern(name):
    """By which the library has this name of a file: %p would be the process id."""
    return name.replace("%", "%%")


def absolute(env, value):
    """The value with the name of its file or folder as it is from here. The library would make it
    absolute at the first use of the GPU, when the program may have changed its folder."""
    kind, head, name = ROWS[env]["type"] if env in ROWS else "", "", value
    if kind in ("STATS", "LOG"):
        head, colon, name = value.partition(":")
        head += colon
    if kind not in FILES or os.path.isabs(name) or \
            name.strip(BLANKS).lower() in ("", "none"):
        return value
    try:
        here = os.getcwd()
    except OSError:
        return value
    if kind in PATTERNS:
        here = pattern(here)
    return head + os.path.join(here, name)
