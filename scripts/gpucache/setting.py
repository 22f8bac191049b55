# SPDX-License-Identifier: BSD-2-Clause
"""gpucache set: changes options of running processes."""
import json

from gpucache import ask, options, process, recording, state, tables, text
from gpucache.fault import DONE, NOT_DONE, USAGE, Fault, complain, end_in_order

PATIENCE_S = 5
TRACES = ("GPUCACHE_TRACE", "GPUCACHE_TRACE_ON")
ALREADY = "it records that already"


def words_of(args):
    """(pids, [(name, value)]) of the command line, checked."""
    pids, pairs = [], []
    for word in args.words:
        if word.isdecimal() and not pairs:
            if not process.is_pid(word):
                raise Fault(f"{word} is no process id", USAGE)
            pids.append(int(word))
            continue
        name, equals, value = word.partition("=")
        if not equals:
            raise Fault(f"{word} is neither a process id nor NAME=VALUE", USAGE)
        env, value = options.checked(name, value)
        if any(c.isspace() for c in value.strip()):
            raise Fault(f"{options.short(env)}={value}: a value with blanks cannot be set in a "
                        "running process", USAGE)
        pairs.append((env, value.strip()))
    if not pids or not pairs:
        raise Fault("set needs process ids, and options as NAME=VALUE", USAGE)
    return list(dict.fromkeys(pids)), pairs


def _records_already(found, env, value):
    """The library makes the file of a trace anew at each such request: it would end the one that is
    on, and refuse the file, which is there."""
    if env not in TRACES or not found.pid or value.lower() in ("", "none", "oom"):
        return False
    now = state.one(found.pid)
    name = recording.of(now) if env == "GPUCACHE_TRACE_ON" else value
    return bool(name) and recording.goes_on(now, name)


def change(found, pairs):
    """What became of each option: [{"name", "old", "new"} or {"name", "why"}]."""
    names = [env for env, _ in pairs]
    already = [(env, value) for env, value in pairs
               if names.count(env) == 1 and _records_already(found, env, value)]
    others = [pair for pair in pairs if pair not in already]
    return [{"name": env, "old": value, "new": value, "note": ALREADY} for env, value in already] \
        + (request(found, others) if others else [])


def is_done(entry):
    """A trace that did not begin has a note alone."""
    is_off = entry.get("name") in TRACES and entry.get("note") not in (None, ALREADY)
    return not entry.get("why") and not is_off


def request(found, pairs):
    """The changes that the library of one process reports."""
    words = " ".join(["set", *(f"{options.short(env)}={value}" for env, value in pairs)])
    with ask.Line(found.page) as line:
        reply = line.ask(words, PATIENCE_S)
    listed = next((v for v in reply.body.values() if isinstance(v, list)), [])
    changes = [c for c in listed if isinstance(c, dict)]
    if state.number(reply.body.get("left_out")):
        changes.append({"name": "the rest", "why": "the reply has no room for it"})
    if not changes:
        if reply.code == tables.PAGE_REPLY_DONE:
            return [{"name": options.short(env), "new": value} for env, value in pairs]
        raise Fault(reply.why())
    return changes


def line_of(entry):
    """MAX_IDLE none -> 1G, or why not."""
    name = text.printable(options.short(str(entry.get("name"))))
    if entry.get("why"):
        return f"{name} is unchanged: {text.printable(str(entry['why']))}"
    old = text.printable(str(entry.get("old", "?")) or "unset")
    new = text.printable(str(entry.get("new", "?")) or "unset")
    note = f" ({text.printable(str(entry['note']))})" if entry.get("note") else ""
    return f"{name} {old} -> {new}{note}"


def show(args):
    end_in_order()
    pids, pairs = words_of(args)
    done, results = True, []
    for pid in pids:
        try:
            found = state.one(pid, fresh=False)
            if not found.pid:
                raise Fault(f"PID {pid}: it has ended")
            try:
                changes = change(found, pairs)
            except Fault as fault:
                raise Fault(f"PID {pid}: {fault}", fault.status) from None
        except Fault as fault:
            complain(fault)
            results.append({"pid": pid, "why": str(fault)})
            done = False
            continue
        results.append({"pid": pid, "changes": changes})
        for entry in changes:
            done = done and is_done(entry)
            if not args.json:
                print(f"PID {pid}: {line_of(entry)}")
    if args.json:
        print(json.dumps({"results": results}))
    return DONE if done else NOT_DONE
