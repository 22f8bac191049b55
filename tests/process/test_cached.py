# SPDX-License-Identifier: BSD-2-Clause
"""What Python packages keep in caches of their own, asked by the request `cached`."""

import os
import time

from test_page import MIB, Case, T


class Cached(Case):
    # A thread that waits for the GPU, whose work waits for a flag.
    WAITER = """
cuda, flag = ctypes.CDLL("libcuda.so.1"), ctypes.POINTER(ctypes.c_uint32)()
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
def wait():
    assert cudart.cudaFree(None) == 0
    assert cuda.cuMemHostAlloc(ctypes.byref(flag), ctypes.c_size_t(4), 2) == 0
    flag[0] = 0
    text = b".version 7.0\\n.target sm_52\\n.visible .entry wait_flag(.param .u64 a){ret;}"
    assert cuda.cuModuleLoadData(ctypes.byref(module), text) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"wait_flag") == 0
    words = (ctypes.c_void_p * 1)(ctypes.addressof(flag))
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, words, None) == 0
    assert cudart.cudaDeviceSynchronize() == 0
waiter = threading.Thread(target=wait, daemon=True)
"""

    def with_packages(self, *lines):
        return self.running("globals().update(fakes=__import__('framework_fakes'))",
                            "globals().update(cache=fakes.Cache())", *lines, SIM_DEVICES="2",
                            PYTHONPATH=os.path.dirname(os.path.abspath(__file__)),
                            GPUCACHE_FRAMEWORKS="1")

    def cached(self, page, code=T.PAGE_REPLY_DONE, words="cached wait=10000"):
        """Package -> what it tells."""
        found = page.ask(words)
        self.assertEqual(found[0], code, found)
        return {package["name"]: package for package in found[2]["frameworks"]}

    def test_tells_what_packages_keep(self):
        with self.with_packages("fakes.put_torch(cache, used=1 << 20)", "cache.fill(64 << 20)") \
                as (program, page):
            torch = self.cached(page)["torch"]
            self.assertEqual((torch["state"], torch["age_ns"], torch["gpus"]),
                             ("done", 0, [{"device": 0, "cached_bytes": 64 * MIB}]))
            program.do("globals().update(contexts=[fakes.NumbaContext(), None, None])",
                       "globals().update(mine={0: fakes.Cache(), 1: fakes.Cache()})",
                       "mine[0].fill(3 << 20)", "cudart.cudaSetDevice(1)", "mine[1].fill(5 << 20)",
                       "cudart.cudaSetDevice(0)", "fakes.put_cupy(mine, fakes.Cache())",
                       "contexts[0].memory_manager.deallocations.add_item(print, 1, 7 << 20)",
                       "fakes.put_numba(contexts)", "fakes.put_rmm([])")
            found = self.cached(page, T.PAGE_REPLY_PARTLY)
            both = [{"device": 0, "cached_bytes": 3 * MIB}, {"device": 1, "cached_bytes": 5 * MIB}]
            self.assertEqual(found["cupy"]["gpus"], both)
            self.assertEqual(found["numba"]["gpus"], [{"device": 0, "cached_bytes": 7 * MIB}])
            self.assertEqual(found["torch"]["gpus"], [{"device": 0, "cached_bytes": 64 * MIB},
                                                      {"device": 1, "cached_bytes": 0}])
            # Its pools do not tell how much of them is free.
            self.assertEqual(found["rmm"], {"name": "rmm", "state": "keeps"})
            # Nothing was emptied, and nothing is asked by itself.
            self.assertEqual(program.do("cache.calls, mine[1].calls"), "(0, 0)")
            looks = program.do("cache.looks")
            page.ask("look")
            time.sleep(0.2)
            self.assertEqual(program.do("cache.looks"), looks)

    def test_of_a_program_without_packages_or_with_the_option_off_is_empty(self):
        with self.running("alloc(1)", GPUCACHE_FRAMEWORKS="1") as (_, page):
            self.assertEqual(self.cached(page), {})
        with self.with_packages("fakes.put_torch(cache)", "cache.fill(1 << 20)") as (program, page):
            page.ask("set FRAMEWORKS=0")
            self.assertEqual((self.cached(page), program.do("cache.looks")), ({}, "0"))

    def test_asks_no_package_while_a_thread_waits_for_the_gpu(self):
        """PyTorch's lock may be held then, and the interpreter's would be held meanwhile."""
        with self.with_packages("fakes.put_torch(cache)", "cache.fill(64 << 20)",
                                f"exec({self.WAITER!r}, globals())") as (program, page):
            self.assertEqual(self.cached(page)["torch"]["age_ns"], 0)
            waits = "cuda.simCallCount(b'cuCtxSynchronize')"
            before = program.do(waits)
            program.do("waiter.start()")
            self.wait_for(lambda: program.do(waits) != before, "nobody waits for the GPU")
            program.do("cache.fill(32 << 20)")
            torch = self.cached(page, T.PAGE_REPLY_PARTLY, "cached wait=100")["torch"]
            self.assertEqual(torch["state"], "busy")
            self.assertEqual(torch["gpus"], [{"device": 0, "cached_bytes": 64 * MIB}])
            self.assertGreater(torch["age_ns"], 0)
            self.assertEqual(program.do("cache.looks"), "1")
            program.do("flag.__setitem__(0, 1)", "waiter.join(60)")
            self.assertEqual(self.cached(page)["torch"]["gpus"],
                             [{"device": 0, "cached_bytes": 96 * MIB}])

    def test_waits_for_no_lock_of_the_interpreter(self):
        """The main thread holds it, in C, until it reads a byte. Old figures have their age, and
        other requests are served."""
        with self.with_packages("fakes.put_torch(cache)", "cache.fill(64 << 20)") \
                as (program, page):
            self.cached(page)
            program.do("globals().update(libc=ctypes.PyDLL(None))", "sys.setswitchinterval(1000)")
            program.send("(libc.write(1, b'inside\\n', 7), "
                          "libc.read(0, ctypes.create_string_buffer(1), 1))")
            self.assertEqual(program.process.stdout.readline(), "inside\n")
            torch = self.cached(page, T.PAGE_REPLY_PARTLY, "cached wait=50")["torch"]
            self.assertEqual((torch["state"], torch["gpus"]),
                             ("late", [{"device": 0, "cached_bytes": 64 * MIB}]))
            self.assertGreater(torch["age_ns"], 40_000_000)
            page.ask("look")
            code, value, receipt = page.ask("flush wait=0")
            self.assertEqual((code, value, receipt["frameworks"]),
                             (T.PAGE_REPLY_PARTLY, 0, "late"))
            self.assertEqual(page.ask("flush wait=0 frameworks=0")[2]["frameworks"], [])
            program.process.stdin.write("x")
            program.process.stdin.flush()
            program.process.stdout.readline()
            self.wait_for(lambda: program.do("cache.calls") != "0", "the late flush is lost")
            self.assertEqual(self.cached(page)["torch"]["gpus"],
                             [{"device": 0, "cached_bytes": 0}])

    def test_leaves_nothing_in_the_program(self):
        with self.with_packages("fakes.put_torch(cache)", "cache.fill(1 << 20)",
                                "globals().update(gc=__import__('gc'))") as (program, page):
            self.cached(page)
            count = "(gc.collect(), len(gc.get_objects()), threading.active_count())[1:]"
            before = eval(program.do(count))
            for _ in range(50):
                self.cached(page)
            after = eval(program.do(count))
            self.assertLess(after[0], before[0] + 40)
            self.assertEqual(after[1], before[1])
