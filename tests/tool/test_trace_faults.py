# SPDX-License-Identifier: BSD-2-Clause
"""What the library's recorder does where a file cannot be written, or not as a whole."""
import os
import pathlib
import subprocess

from written import WRITER, Traces

from gpucache import tables


class Faults(Traces):
    def test_at_a_limit_the_trace_ends_and_the_program_goes_on(self):
        limit = tables.TRACE_HEADER_BYTES + 3 * tables.TRACE_CHUNK_BYTES + 100
        done = subprocess.run(["prlimit", f"--fsize={limit}", WRITER, "threads", self.path],
                              timeout=100, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertRegex(done.stderr, r"GPUCACHE_TRACE: the trace \S+ ends here: there is no room "
                                      r"for more of the file: File too large")
        its, events = self.read()
        self.assertGreater(len(events), 3000)
        self.assertFalse(its.ended)

    def test_on_a_full_disk_the_trace_ends_and_the_program_goes_on(self):
        """At a later chunk. All that was written is read."""
        said = self.write("full-disk")
        self.assertRegex(said, rf"^\S+ \S+ GPUCACHE_TRACE: the trace {self.path} ends here: there "
                               r"is no room for more of the file: No space left on device\n$")
        its, events = self.read()
        self.assertGreater(len(events), 20000)
        self.assertEqual([e.a for e in events], [0x7f0000000000 + i * 512
                                                 for i in range(len(events))])
        self.assertEqual((its.num_torn, its.num_unknown, its.ended), (0, 0, False))
        its, events = self.read(self.path + ".2")
        self.assertEqual(([e.b for e in events], its.ended), ([222], True))

    def test_what_passes_ends_no_trace(self):
        """A signal that interrupts it; a moment without descriptors costs its records."""
        self.assertEqual(self.write("interrupted"), "")
        its, events = self.read()
        self.assertEqual((len(events), its.num_lost, its.ended), (30000, 0, True))
        other = self.path + ".2"
        self.assertEqual(self.write("descriptors", path=other), "")
        its, events = self.read(other)
        self.assertEqual((events[0].b, events[-1].b, its.ended), (111, 333, True))
        self.assertEqual(len(events) + its.num_lost, 40002)
        self.assertGreater(its.num_lost, 20000)

    def test_what_was_lost_at_the_end_is_in_the_header(self):
        """Where no chunk was to be had for it."""
        self.assertEqual(self.write("descriptors-at-last"), "")
        its, events = self.read()
        self.assertFalse(its.ended)
        self.assertEqual(len(events) + its.num_lost, 40001)

    def test_another_file_with_the_number_of_the_descriptor_is_left_alone(self):
        """It costs a record, or the begin of a trace."""
        said = self.write("stolen")
        self.assertRegex(said, r"^\S+ \S+ GPUCACHE_TRACE=\S+: there is no trace: the file cannot "
                               r"be written: Bad file descriptor\n$")
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.gct", "a.gct.other"])
        other = pathlib.Path(self.path + ".other").read_bytes()
        self.assertEqual((len(other), any(other)), (tables.TRACE_HEADER_BYTES, False))
        its, events = self.read()
        self.assertEqual((len(events), its.num_lost, its.ended), (79996, 4, True))

    def move_while_it_is_written(self):
        """What the writer said. Nothing: it had written all before, on a busy machine."""
        for path in self.path, self.path + ".moved":
            pathlib.Path(path).unlink(missing_ok=True)
        with subprocess.Popen([WRITER, "threads", self.path], stderr=subprocess.PIPE,
                              text=True) as writer:
            while not os.path.exists(self.path) or \
                    os.path.getsize(self.path) < 2 * tables.TRACE_CHUNK_BYTES:
                pass
            os.link(self.path, self.path + ".moved")
            pathlib.Path(self.path + ".new").touch()
            os.replace(self.path + ".new", self.path)  # the name is never nobody's
            said = writer.communicate(timeout=100)[1]
            self.assertEqual(writer.returncode, 0)
        return said

    def test_a_file_that_was_moved_ends_the_trace(self):
        said = next(filter(None, (self.move_while_it_is_written() for _ in range(20))), "")
        self.assertIn("another file has its name now", said)
        self.assertEqual(os.path.getsize(self.path), 0)
        self.assertTrue(self.read(self.path + ".moved")[1])

    def test_a_dump_that_failed_harms_no_later_one(self):
        said = self.write("failed-dumps")
        self.assertEqual(said, f"no file {self.path}/no.dump: the file cannot be made: Not a "
                               f"directory\n0 {self.path}.dump.2: there is no host memory\n")
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.gct", "a.gct.dump.3"])
        its, events = self.read(self.path + ".dump.3")
        self.assertTrue(its.ended)
        self.assertIn(2000, [e.b for e in events])

    def test_a_dump_that_fails_removes_no_other_file(self):
        """Of its name, which the file has no more."""
        name = self.path + ".dump"
        self.assertEqual(self.write("dump-of-another-name"), f"no file {name}: there is no room "
                                                             "for the file: File too large\n")
        self.assertEqual(pathlib.Path(name).read_text(encoding="ascii"), "mine")
