#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The text of the kernel in shim/park/hash.c, which no GPU runs here: what it computes, read as a
program, and that the assembler for GPUs takes it.

kernel.py TEST_HASH              the hash of a page by the text is that of the C function
kernel.py TEST_HASH --assemble   ptxas takes the text for GPUs old and new; skipped without ptxas"""
import array
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

SKIPPED = 77
THREADS = 256
PAGE, KEY = 2 << 20, 515 * 4096                # bytes
PAGES_AT, KEY_AT, OUT_AT = 0, 2 * PAGE, 1 << 40  # addresses
SIZES = {"u32": 0xffffffff, "u64": (1 << 64) - 1, "b64": (1 << 64) - 1}
TESTS = {"ge": ">=", "lt": "<", "ne": "!="}


def expression(word):
    """An operand: a register, a number, or what the kernel is given."""
    return {"%tid.x": "tid_x", "%ctaid.x": "ctaid_x", "sums": "0"}.get(word, word)


def place(word):
    """[register+offset]"""
    return " + ".join(re.fullmatch(r"\[(\w+)\+(\d+)\]", word).groups())


def statement(op, operands):
    """One instruction in Python."""
    kind, *rest = op.split(".")
    first, *others = operands
    mask = SIZES.get(rest[-1] if rest else "")
    values = [expression(word) for word in others]
    if kind in ("mov", "cvt"):
        return f"{first} = {values[0]}"
    if kind in ("add", "shl", "shr"):
        sign = {"add": "+", "shl": "<<", "shr": ">>"}[kind]
        return f"{first} = ({values[0]} {sign} {values[1]}) & {mask}"
    if op == "mul.wide.u32":
        return f"{first} = {values[0]} * {values[1]}"
    if op == "mad.wide.u32":
        return f"{first} = ({values[0]} * {values[1]} + {values[2]}) & {SIZES['u64']}"
    if kind == "setp":
        return f"{first} = {values[0]} {TESTS[rest[0]]} {values[1]}"
    if op == "ld.param.u64":
        return f"{first} = params['{others[0].strip('[]')}']"
    if op == "ld.global.nc.v4.u32":
        return f"{first.strip('{}')} = load({place(others[0])})"
    if op == "ld.shared.u64":
        return f"{first} = shared[{place(others[0])}]"
    if op == "st.shared.u64":
        return f"shared[{place(first)}] = {values[0]}"
    if op == "st.global.v2.u64":
        return f"store({place(first)}, ({values[0].strip('{}')}))"
    raise SyntaxError(f"{op}: not known here")


def translate(text):
    """The kernel as the source of a generator, which yields at each barrier. A label begins a loop,
    which ends with the branch to it."""
    body = text[text.index("\n{\n") + 3:text.rindex("}")]
    lines, loops = ["def thread(tid_x, ctaid_x, params, load, store, shared):"], []
    for part in body.split(";"):
        part = part.strip()
        label = re.match(r"(\w+):\s*", part)
        if label:
            lines.append("    " * (len(loops) + 1) + "while True:")
            loops.append(label[1])
            part = part[label.end():]
        if not part or part.startswith((".reg", ".shared")):
            continue
        guard, op, rest = re.fullmatch(r"(@u )?(\S+)\s*(.*)", part).groups()
        indent = "    " * (len(loops) + 1)
        if op == "bra":
            assert guard and loops.pop() == rest, part
            lines.append(f"{indent}if not u: break")
            continue
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
        what = "return" if op == "ret" else "yield" if op == "bar.sync" else statement(op, operands)
        lines.append(indent + ("if u: " if guard else "") + what)
    assert not loops
    return "\n".join(lines)


def run_block(thread, block, params, load, store):
    """All threads up to each barrier, in turns."""
    shared = {}
    threads = [thread(i, block, params, load, store, shared) for i in range(THREADS)]
    while threads:
        alive = [t for t in threads if next(t, t) is not t]
        assert len(alive) in (0, len(threads)), "some threads miss a barrier"
        threads = alive


def random_words(num_bytes, seed):
    """As tests/unit/test_hash.c makes them."""
    words = array.array("I", bytes(num_bytes))
    for i in range(num_bytes // 4):
        seed = (seed * 6364136223846793005 + 1442695040888963407) & SIZES["u64"]
        words[i] = seed >> 32
    return words


def interpret(text, wanted):
    names = {}
    exec(compile(translate(text), "kernel", "exec"), names)  # pylint: disable=exec-used
    page = random_words(PAGE, 1)
    other = page[:]
    other[77777] ^= 1
    memory = other + page + random_words(KEY, 2)
    written = {}

    def load(addr):
        assert addr % 16 == 0 and addr // 4 + 4 <= len(memory)
        return memory[addr // 4:addr // 4 + 4]

    def store(addr, values):
        assert addr % 16 == 0
        written.update({addr + 8 * i: value for i, value in enumerate(values)})

    params = {"pages": PAGES_AT, "count": 2, "key": KEY_AT, "out": OUT_AT}
    for block in (1, 0, 2):  # one more than pages
        run_block(names["thread"], block, params, load, store)
    assert sorted(written) == [OUT_AT + 8 * i for i in range(8)], written
    found = [written[OUT_AT + 32 + 8 * i] for i in range(4)]
    assert found == wanted, (found, wanted)
    assert all(written[OUT_AT + 8 * i] != wanted[i] for i in range(4))
    return 0


def find_ptxas():
    places = [sysconfig.get_paths()["purelib"]]
    packaged = [path for place in places
                for path in glob.glob(os.path.join(place, "nvidia", "*", "bin", "ptxas"))]
    return (os.environ.get("PTXAS") or shutil.which("ptxas") or
            next(iter(packaged + glob.glob("/usr/local/cuda/bin/ptxas")), None))


def assemble(text):
    ptxas = find_ptxas()
    if not ptxas:
        print("no ptxas: the packages nvidia-cuda-nvcc and nvidia-cuda-nvcc-cu12 have it")
        return SKIPPED
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "hash.ptx")
        with open(source, "w", encoding="ascii") as file:
            file.write(text)
        for arch in ("sm_50", "sm_60", "sm_70", "sm_80", "sm_90", "sm_100", "sm_120"):
            done = subprocess.run([ptxas, "-v", "-arch", arch, source, "-o",
                                   os.path.join(folder, "out")], text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if "is not defined for option" in done.stdout:
                continue  # newer or older than this ptxas
            print(arch, done.stdout)
            assert done.returncode == 0 and "spill" not in re.sub("0 bytes spill", "", done.stdout)
            taken.append(arch)
    assert "sm_90" in taken, taken
    return 0


def main():
    out = subprocess.run([sys.argv[1], "--print"], stdout=subprocess.PIPE, text=True,
                         check=True).stdout
    hashes, text = out.split("\n", 1)
    if "--assemble" in sys.argv:
        return assemble(text)
    return interpret(text, [int(word, 16) for word in hashes.split()])


if __name__ == "__main__":
    sys.exit(main())
