# SPDX-License-Identifier: BSD-2-Clause
"""Pages of live state: finding them, and reading one. The layout, and the rules of reading, are
those of shim/page/layout.h, by the generated tables.

A page is read by pread, because another process may cut the file short at any time. A load from a
mapping would then end the tool. Whatever it says is checked before use: the directory and the file
have to be their user's own, without a symbolic link on the way."""
import errno
import itertools
import json
import os
import re
import stat
import struct
import time

from gpucache import process, tables, text
from gpucache.fault import Fault, reason

HEADER_BYTES = 128  # what every version keeps
NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)" + re.escape(tables.PAGE_SUFFIX))
DAY_NS = 86400 * 10**9
# ps leaves the last state of a process that was killed to `gpucache stat` for this long.
KEEP_NS = 600 * 10**9
FILES_NAMED = 3
PLACES = ("/dev/shm", "/tmp")
# Where root looks at all users, none of them can make it read without end. It reads so many pages
# of each user, so many names of a folder, and so many folders, the lowest user ids first.
PAGES_EACH, NAMES_EACH, FOLDERS_MAX = 1000, 20_000, 1000
UIDS = 1 << 32
FOLDER = re.compile(r"gpucache-(0|[1-9][0-9]{0,9})")
# So long one look, at one process or at all, waits for pages that are being written: for those of
# one user, and for all.
PATIENCE_EACH_S, PATIENCE_S = 1.0, 5.0
PAGE_NAMES = re.compile(rb"([0-9]+-[0-9]+-[0-9]+" + re.escape(tables.PAGE_SUFFIX).encode() + rb")")


def unpack(layout, name, data, start=0):
    """A field of a record that begins at start."""
    offset, form = layout[name]
    return struct.unpack_from(form, data, start + offset)[0]


class BadFile(Fault):
    """A file among the pages that is no page, or a folder that is not its user's own. kind: "files"
    or "folders"."""

    def __init__(self, path, why, kind="files"):
        super().__init__(f"{path} is not used: {why}")
        self.kind, self.place, self.why = kind, (kind, os.path.dirname(path)), why


def sum_up(complaints):
    """Sentences. Many bad files in one folder have a single one."""
    several = {}
    for fault in complaints:
        if isinstance(fault, BadFile):
            several.setdefault(fault.place, []).append(fault)
    told = []
    for fault in complaints:
        like = several.get(getattr(fault, "place", None), ())
        if len(like) <= FILES_NAMED:
            told.append(str(fault))
        elif fault is like[0]:
            told.append(text.printable(f"{fault.place[1]}: {len(like):,} {fault.kind} are not "
                                       f"used; of the first: {fault.why}"))
    return told


class Folder:
    """A directory of pages, open. Faults if it is not its owner's own."""

    def __init__(self, path, owner):
        # Before a slash or a dot the kernel would follow a symbolic link.
        path = re.sub(r"(?<=.)(/+\.?)+$", "", path)
        self.path, self.owner, self.fd = path, owner, -1
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise FileNotFoundError(path) from None
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise BadFile(path, "it is no directory", "folders") from None
            raise BadFile(path, reason(error), "folders") from None
        found = os.fstat(self.fd)
        why = ""
        if found.st_uid != owner:
            why = f"it belongs to {process.user_name(found.st_uid)}, not to " \
                  f"{process.user_name(owner)}"
        elif found.st_mode & 0o022:
            why = "others may write to it"
        if why:
            raise BadFile(path, why, "folders")

    def __del__(self):
        """The pages keep their folder: with the last of them, its descriptor goes."""
        if self.fd >= 0:
            os.close(self.fd)

    def names(self, complaints):
        """The names of pages. Of another user's folder no more than NAMES_EACH names are read."""
        most = None if self.owner == os.geteuid() else NAMES_EACH
        with os.scandir(self.fd) as entries:
            found = [entry.name for entry in itertools.islice(entries, most)]
            if next(entries, None):
                complaints.append(Fault(f"{self.path}: it has more than {most:,} names; the rest "
                                        "is left out"))
        return sorted(name for name in found if NAME.fullmatch(name))

    def open(self, name, flags=os.O_RDONLY):
        """A descriptor of a page. FileNotFoundError: it is gone."""
        shown = os.path.join(self.path, name)
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                         dir_fd=self.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            why = "it is a symbolic link" if error.errno == errno.ELOOP else reason(error)
            raise BadFile(shown, why) from None
        found = os.fstat(fd)
        why = ""
        if not stat.S_ISREG(found.st_mode):
            why = "it is no file"
        elif found.st_uid != self.owner:
            why = f"it belongs to {process.user_name(found.st_uid)}"
        elif found.st_size < HEADER_BYTES:
            why = "it is cut short"
        if why:
            os.close(fd)
            raise BadFile(shown, why)
        return fd


class Page:
    """One file. `pid` is the number of its process here; None: it has ended, or is not visible."""

    def __init__(self, folder, name, pid):
        self.folder, self.name, self.pid, self._boot_id = folder, name, pid, None
        numbers = [int(n) for n in NAME.fullmatch(name).groups()]
        self.namespace, self.inner_pid, self.start_ticks = numbers

    @property
    def path(self):
        return os.path.join(self.folder.path, self.name)

    def boot_id(self):
        """b"": it does not say."""
        if self._boot_id is None:
            try:
                fd = self.open()
            except (Fault, OSError):
                return b""
            try:
                offset, form = tables.PAGE["boot_id"]
                found = os.pread(fd, struct.calcsize(form), offset)
            finally:
                os.close(fd)
            self._boot_id = found if any(found) else b""
        return self._boot_id

    def is_ours(self):
        """Are its boot and its pid namespace those of the tool? Then a process that /proc lacks has
        ended."""
        return self.namespace == process.namespace("self") and \
            self.boot_id() == process.boot_id() != b""

    def is_foreign(self):
        """Is it of another boot: of another machine that shares the folder, as a rule?"""
        return self.boot_id() not in (b"", process.boot_id())

    def is_of(self, pid):
        """Does the program that made the page still run in this process? A program that replaced it
        (exec) has its number and its start, and not its page."""
        names = process.mapped(pid, PAGE_NAMES)
        return names is None or self.name in names

    def open(self, flags=os.O_RDONLY):
        return self.folder.open(self.name, flags)

    def remove(self):
        try:
            os.unlink(self.name, dir_fd=self.folder.fd)
        except OSError:
            pass  # another process was faster, or it is not ours to remove

    def head(self):
        """(version, when it was last written), without what takes longer to read."""
        fd = self.open()
        try:
            data = os.pread(fd, tables.PAGE["doorbell"][0], 0)
            return unpack(tables.PAGE, "version", data), unpack(tables.PAGE, "published_ns", data)
        except struct.error:
            raise BadFile(self.path, "it is cut short") from None
        finally:
            os.close(fd)

    def read(self):
        """Its contents, as Contents."""
        fd = self.open()
        try:
            return Contents(fd, self.path)
        finally:
            os.close(fd)


class Contents:
    """What a page says. `note` tells what is missing and why; `body` is then empty."""

    # What is left of PATIENCE_EACH_S for each user, and under None of PATIENCE_S.
    patience = {}

    def __init__(self, fd, path):
        data = self._stable(fd)
        if data[:8] != tables.PAGE_MAGIC:
            raise BadFile(path, "it is no page of libgpucache")

        def field(name):
            return unpack(tables.PAGE, name, data)
        self.version, self.uid = field("version"), field("uid")
        self.started_unix_ns = field("started_unix_ns")
        self.library_version = text.printable(
            field("library_version").split(b"\0")[0].decode(errors="replace"))
        self.published_ns, self.published_unix_ns = 0, 0
        self.body = {}
        if self.version != tables.PAGE_VERSION:
            self.note = f"its page is of version {self.version}, this tool knows version " \
                        f"{tables.PAGE_VERSION}"
            return
        if len(data) < tables.PAGE_BYTES:
            self.note = "its page is cut short"
            return
        self.published_ns, self.published_unix_ns = \
            field("published_ns"), field("published_unix_ns")
        if field("sequence") % 2 or not self.same:
            self.note = "it ended while it wrote its page, or somebody else wrote to it"
            return
        self.note = ""
        start, length = tables.PAGE["body"][0], field("body_bytes")
        try:
            self.body = json.loads(data[start:start + length].decode(errors="replace"))
            if not isinstance(self.body, dict) or start + length > tables.PAGE_BYTES:
                raise ValueError
        except (ValueError, RecursionError):
            self.body, self.note = {}, "its page cannot be read"

    def _stable(self, fd):
        """The bytes of the page, with the same even sequence before and after. After half a second
        without one, or where the patience is used up, what there is: self.same is then False."""
        offset, form = tables.PAGE["sequence"]
        start = time.monotonic()
        left = Contents.patience
        whose = ((os.fstat(fd).st_uid, PATIENCE_EACH_S), (None, PATIENCE_S))
        num_bytes, end = struct.calcsize(form), \
            start + min(0.5, *(max(0.0, left.get(user, most)) for user, most in whose))
        waited = False
        while True:
            before = os.pread(fd, num_bytes, offset)
            data = os.pread(fd, tables.PAGE_BYTES, 0)
            after = os.pread(fd, num_bytes, offset)
            self.same = before == after == data[offset:offset + num_bytes]
            even = len(after) == num_bytes and struct.unpack(form, after)[0] % 2 == 0
            if self.same and even or len(data) < tables.PAGE_BYTES or time.monotonic() > end:
                for user, most in whose if waited else ():
                    left[user] = left.get(user, most) - (time.monotonic() - start)
                return data
            waited = True
            time.sleep(0.001)

    def age_ns(self):
        """Since it was written. A clock that was set back gives 0."""
        if self.published_ns:
            return max(0, time.monotonic_ns() - self.published_ns)
        return max(0, time.time_ns() - self.published_unix_ns)


def places(uid, root=""):
    """The directories in which a user's processes have their pages by default."""
    return [f"{root}{place}/gpucache-{uid}" for place in PLACES]


def _open_all(candidates, complaints, seen=None):
    """The candidates (path, owner) that are there, as folders, each once. seen: the devices and
    inodes of those before."""
    seen = set() if seen is None else seen
    for path, owner in candidates:
        try:
            folder = Folder(path, owner)
        except FileNotFoundError:
            continue
        except Fault as fault:
            complaints.append(fault)
            continue
        found = os.fstat(folder.fd)
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        yield folder


def _open_places(complaints, all_users):
    """The user's own folders; then those of all users, but no more than FOLDERS_MAX."""
    seen = set()
    yield from _open_all(_own_places(), complaints, seen)
    if not all_users:
        return
    folders = _open_all(_everybodys_places(complaints), complaints, seen)
    yield from itertools.islice(folders, FOLDERS_MAX)
    left_out = {}
    for folder in folders:
        place = os.path.dirname(folder.path)
        left_out[place] = left_out.get(place, 0) + 1
    for place, number in left_out.items():
        complaints.append(Fault(f"{place}: {number:,} folders are left out: at most "
                                f"{FOLDERS_MAX:,} are read"))


def _own_places():
    own = os.environ.get("GPUCACHE_DIR", "")
    first = [(own, os.geteuid())] if own and own.lower() != "none" else []
    return first + [(path, os.geteuid()) for path in places(os.geteuid())]


def _everybodys_places(complaints):
    """The candidates (path, owner) of all users, those of the lowest user ids first."""
    found = []
    for place in PLACES:
        try:
            with os.scandir(place) as entries:  # there may be millions of other files
                uids = [match[1] for match in (FOLDER.fullmatch(e.name) for e in entries) if match]
        except OSError:
            continue
        found += [(f"{place}/gpucache-{uid}", int(uid)) for uid in uids if int(uid) < UIDS]
    num_foreign = 0
    for path, uid in sorted(found, key=lambda candidate: candidate[1]):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        num_foreign += status.st_uid != uid
        if status.st_uid != uid and num_foreign > FILES_NAMED:
            # Without the names of both: a directory service may take long for each.
            complaints.append(BadFile(path, "it belongs to somebody else", "folders"))
        else:
            yield path, uid


def _places_of(pid, uid):
    """Where one process may have its page, also in its own view of the file system."""
    candidates = [(path, uid) for path in places(uid)]
    root = f"/proc/{pid}/root"
    own = process.environ(pid, "GPUCACHE_DIR")
    if own and own.startswith("/"):
        candidates.insert(0, (root + own, uid))
        candidates.insert(0, (own, uid))
    for place in PLACES:
        try:
            with os.scandir(root + place) as entries:
                names = [e.name for e in itertools.islice(entries, NAMES_EACH)
                         if FOLDER.fullmatch(e.name)]
            candidates += [(f"{root}{place}/{n}", uid) for n in names
                           if os.lstat(f"{root}{place}/{n}").st_uid == uid][:FOLDERS_MAX]
        except OSError:
            pass
    return candidates


def need_right(all_users):
    """Faults if somebody who is not root wants the pages of all users."""
    if all_users and os.geteuid() != 0:
        raise Fault("only root sees the processes of all users: leave --all-users out, or use sudo")


def _running():
    """(pid in its namespace, start) -> [(namespace or None, pid)] of all processes."""
    running = {}
    for pid in process.pids():
        identity = process.identity(pid)
        if identity:
            running.setdefault(identity[1:], []).append((identity[0], pid))
    return running


def find_all(all_users=False):
    """(pages, complaints): all pages of the user, or of everybody (root)."""
    need_right(all_users)
    complaints, pages, taken = [], [], {}
    Contents.patience = {}
    running, maps = _running(), {}
    for folder in _open_places(complaints, all_users):
        its = [Page(folder, name, None) for name in folder.names(complaints)]
        for page in its:
            for namespace, pid in running.get((page.inner_pid, page.start_ticks), ()):
                if pid not in maps:
                    maps[pid] = process.mapped(pid, PAGE_NAMES)
                if namespace in (None, page.namespace) and \
                        (maps[pid] is None or page.name in maps[pid]):
                    page.pid = pid
        if folder.owner != os.geteuid():
            its.sort(key=lambda page: page.pid is None)  # those that run first
            room = max(0, PAGES_EACH - taken.get(folder.owner, 0))
            if len(its) > room:
                complaints.append(Fault(f"{folder.path}: {len(its) - room:,} files are left out: "
                                        f"at most {PAGES_EACH:,} pages of one user are read"))
            its = its[:room]
            taken[folder.owner] = taken.get(folder.owner, 0) + len(its)
        pages += its
    return pages, complaints


def why_foreign(uid):
    """The sentence about a process of that user whom this one may not ask anything, or ""."""
    if uid is None or os.geteuid() in (0, uid):
        return ""
    name = process.user_name(uid)
    who = f"{name} and root" if uid else name
    return f"it belongs to {name}: only {who} may look at it"


def find(pid):
    """(page or None, complaints): the page of one process, also of one that has ended."""
    complaints = []
    identity, uid = process.identity(pid), process.uid(pid)
    why = why_foreign(uid)
    if why:
        raise Fault(why)
    if identity and uid is not None:  # None: it has just ended
        candidates = _own_places() if uid == os.geteuid() else []
        for folder in _open_all(candidates + _places_of(pid, uid), complaints):
            for name in folder.names(complaints):
                page = Page(folder, name, pid)
                if (page.inner_pid, page.start_ticks) == identity[1:] and \
                        identity[0] in (None, page.namespace):
                    page.pid = pid if page.is_of(pid) else None
                    return page, complaints
        return None, complaints
    found = []
    for folder in _open_places(complaints, os.geteuid() == 0):
        found += [Page(folder, name, None) for name in folder.names(complaints)
                  if name.split("-")[1] == str(pid)]
    # The newest; a page of this namespace before one of another.
    found.sort(key=lambda page: (page.is_ours(), page.start_ticks))
    return (found[-1] if found else None), complaints
