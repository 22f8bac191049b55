# SPDX-License-Identifier: BSD-2-Clause
"""Names of frames, and which frame of a call path is the code that asked."""
import collections
import html
import io
import json
import os
import re
import subprocess
import time
import unittest
import unittest.mock

from fake import Scratch, put_text, well

import browser
import gct
from gpucache import frame, report, report_page, symbols

# As addr2line tells them of real libraries: the name, and what is shown.
NAMES = (
    ("main", "main"),
    ("main.cold", "main.cold"),
    ("cublasCreate_v2", "cublasCreate_v2"),
    ("operator_table", "operator_table"),
    ("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_block(c10::cuda::"
     "CUDACachingAllocator::Native::(anonymous namespace)::AllocParams&, bool, std::shared_ptr<c10"
     "::GatheredContext> const&, std::unique_lock<std::recursive_mutex>&)",
     "DeviceCachingAllocator::alloc_block"),
    ("void at::native::gpu_reduce_kernel<float, 4, at::native::func_wrapper_t<float, "
     "__nv_dl_tag<void (at::native::sum_functor<float>::*)(at::TensorIterator&), "
     "&at::native::sum_functor<float>::operator(), 1u>, float (float, float)>, double>(at::"
     "TensorIterator&, long) [clone .isra.0]", "native::gpu_reduce_kernel"),
    ("std::vector<at::Tensor, std::allocator<at::Tensor> > at::native::foreach_unary_op<float, "
     "at::native::Sqrt>(c10::ArrayRef<at::Tensor>)", "native::foreach_unary_op"),
    ("torch::autograd::VariableType::(anonymous namespace)::addmm(c10::DispatchKeySet)",
     "VariableType::addmm"),
    ("torch::autograd::InputMetadata::reduce_grad(at::Tensor&) const",
     "InputMetadata::reduce_grad"),
    ("torch::autograd::Node::operator()(std::vector<at::Tensor>&&)", "Node::operator()"),
    ("at::Tensor const& at::pick(at::Tensor const&, int const) const &", "at::pick"),
    ("int const net::pick()", "net::pick"),
    ("net::run(int) const::{lambda(int, char const*)#2}::operator()(int, char const*) const",
     "run::{lambda}::operator()"),
    ("net::run()::'lambda'(int)::operator()(int) const", "run::'lambda'::operator()"),
    ("net::{unnamed type#1}::take()", "net::{unnamed type}::take"),
    ("bool net::operator< <int>(net::Box<int> const&)", "net::operator<"),
    ("net::operator<<(std::ostream&, net::Box const&)", "net::operator<<"),
    ("bool net::operator><int>(net::Box<int> const&)", "net::operator>"),
    ("net::Box::operator->() const", "Box::operator->"),
    ("net::Box::operator std::vector<int, std::allocator<int> >() const",
     "Box::operator std::vector<int, std::allocator<int> >"),
    ("net::Box::operator bool() const", "Box::operator bool"),
    ("operator new(unsigned long)", "operator new"),
    ("operator new[](unsigned long, std::align_val_t)", "operator new[]"),
    ("net::name[abi:cxx11](int)", "net::name"),
    ("void (*net::pick<int>(int))(char)", "net::pick"),
    ("decltype (f(0)) net::call<int>(int)", "net::call"),
    ("net::Grid<(4 > 3), (net::Kind)1>::resize(int)", "Grid::resize"),
    ("<candle::Cuda as candle::Device>::alloc::h0123456789abcdef", "alloc"),
    ("candle::device::alloc::{{closure}}::h0123456789abcdef", "alloc::{closure}"),
)
Place = collections.namedtuple("Place", "object function is_python", defaults=("", False))
DISPATCH = "c10::impl::wrap_kernel_functor_unboxed_<c10::impl::detail::WrapFunctionIntoFunctor_<" \
           "at::Tensor (at::Tensor const&)>, at::Tensor>::call(c10::OperatorKernel*)"
TORCH = [Place("libc10_cuda.so"), Place("libc10_cuda.so", "c10::cuda::CUDACachingAllocator::Native"
                                        "::NativeCachingAllocator::allocate(unsigned long)"),
         Place("libtorch_cpu.so", "at::detail::empty_generic(c10::ArrayRef<long>)"),
         Place("libtorch_cuda.so", "at::(anonymous namespace)::(anonymous namespace)::"
               "wrapper_CUDA_memory_format_empty(c10::ArrayRef<c10::SymInt>)"),
         Place("libtorch_cuda.so", DISPATCH),
         Place("libtorch_cpu.so", "at::_ops::empty_like::call(at::Tensor const&)")]
ADDS = [Place("libtorch_cuda.so", "at::(anonymous namespace)::create_out(c10::ArrayRef<long>)"),
        Place("libtorch_cuda.so", "at::(anonymous namespace)::structured_ufunc_add_CUDA_functional"
              "::set_output_raw_strided(long)"),
        Place("libtorch_cpu.so", "at::TensorIteratorBase::build(at::TensorIteratorConfig&)"),
        Place("libtorch_cpu.so", "at::meta::structured_add_Tensor::meta(at::Tensor const&)")]


class Frames(unittest.TestCase):
    def test_short_names(self):
        for function, words in NAMES:
            self.assertEqual(frame.short(function), words)

    def test_a_long_name_is_cut(self):
        self.assertEqual(frame.short("f" * 5000), "f" * 79 + "…")

    def test_broken_names_take_no_time(self):
        for words in "<", "(", "(*", "{", "operator", "operator<", " const", "::", "a<", "<(", " ":
            since = time.process_time()
            frame.short(words * 100_000)
            self.assertTrue(frame.short(words * 100_000), words)
            self.assertLess(time.process_time() - since, 5, words)

    def test_a_sign_in_a_name_gives_no_other_place_a_name(self):
        """A symbol may have each sign but zero. A line break in one leaves all without names."""
        for said, found in (("a\x0bb\x85c\nx.c:1\nnext\ny.c:2\n", ["a?b?c", "next"]),
                            ("a\nb\nx.c:1\nnext\ny.c:2\n", ["", ""])):
            places = [symbols.Place("/lib/a.so", offset) for offset in (100, 200)]
            done = subprocess.CompletedProcess((), 0, said)
            with unittest.mock.patch.object(symbols.subprocess, "run", return_value=done), \
                    unittest.mock.patch.object(symbols, "_segments", return_value=[(0, 0, 999)]):
                symbols.Symbols._name("addr2line", "/lib/a.so", places)
            self.assertEqual([place.function for place in places], found)

    def asked(self, *places):
        return places[frame.asked(list(places))]

    def test_a_python_function_asked_if_there_is_one(self):
        forward = Place("model.py", "Block.forward", True)
        for above in [], TORCH, [Place("libcublas.so")], [Place("a.out", "work")]:
            self.assertEqual(self.asked(*above, forward, Place("a.py", "main", True)), forward)

    def test_an_allocator_asked_for_nobody(self):
        clone = Place("libtorch_cpu.so", "at::native::clone(at::Tensor const&)")
        self.assertEqual(self.asked(*TORCH, clone, Place("a.out", "main")), clone)
        self.assertEqual(self.asked(*TORCH, *ADDS, clone), ADDS[-1])
        for function in ("rmm::mr::cuda_memory_resource::do_allocate(unsigned long)",
                         "tsl::BFCAllocator::Extend(unsigned long)", "cudaMallocAsync",
                         "libcudart_static_0123", "thrust::detail::vector_base<int>::append()"):
            mine = Place("a.out", "work(int)")
            self.assertEqual(self.asked(Place("a.out", function), mine), mine, function)

    def test_other_functions_with_names_asked(self):
        for function in ("embedding", "at::native::embedding_cuda(int)", "c10d::take()",
                         "cudamalloc", "net::empty()", "at::cuda::getCurrentCUDABlasHandle()",
                         "net::Allocator::take()"):
            its = Place("liba.so", function)
            self.assertEqual(self.asked(its, Place("a.out", "main")), its, function)

    def test_a_library_without_names_asked_for_its_caller(self):
        hidden = Place("libcublas.so")
        create = Place("libcublas.so", "cublasCreate_v2")
        caller, other = Place("a.out", "work"), Place("libother.so")
        self.assertEqual(self.asked(hidden, hidden, create, caller), create)
        self.assertEqual(self.asked(hidden, hidden, other, caller), other)

    def test_a_path_of_nothing_else_has_the_innermost(self):
        for path in [Place("a.out")], [Place("a.out")] * 3, TORCH[1:]:
            self.assertIs(self.asked(*path), path[0])


MIB = 1 << 20
SOS = [(n << 20, 1 << 20, f"/lib/{file}") for n, file in enumerate(
    ("libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libcublas.so.13", "train"), 1)]
ALLOCATE, EMPTY, WRAPPER, CLONE, ENGINE, GEMM, MAIN = 1 << 20, 2 << 20, 3 << 20, 2 << 20 | 16, \
    2 << 20 | 32, 3 << 20 | 16, 5 << 20
FUNCTIONS = {ALLOCATE: TORCH[1].function, EMPTY: TORCH[2].function, WRAPPER: TORCH[3].function,
             CLONE: "at::native::clone(at::Tensor const&, std::optional<c10::MemoryFormat>)",
             ENGINE: "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::"
                     "GraphTask>&, torch::autograd::Node*)",
             GEMM: "bool at::cuda::blas::gemm_and_bias<float, float>(bool, bool)", MAIN: "main"}
CUBLAS = 4 << 20
FORWARD, CALL, TRAIN = ("Block.forward", "/me/model.py", 29), ("Module._call_impl",
                                                               "/torch/module.py", 1790), \
    ("<module>", "/me/train.py", 7)
ASKS = [(40 * MIB, [ALLOCATE, EMPTY, WRAPPER, CLONE, FORWARD, CALL, TRAIN]),
        (20 * MIB, [ALLOCATE, EMPTY, WRAPPER, CLONE, ENGINE, MAIN]),
        (10 * MIB, [CUBLAS, CUBLAS | 16, GEMM, ENGINE, MAIN]), (5 * MIB, [MAIN])]


class Reports(Scratch):
    """What is said of a trace of PyTorch's, whose libraries are not here: the test has the names
    of their functions."""

    def setUp(self):
        super().setUp()
        self.write(ASKS)

    def write(self, asks):
        gct.write_paths(self.path, asks, SOS)
        with unittest.mock.patch.object(symbols.Symbols, "_name", staticmethod(self.name)), \
                unittest.mock.patch.object(symbols, "PROGRAMS", ("sh",)):
            self.report = report.Report(self.path)
        self.addCleanup(self.report.close)
        self.text = "\n".join(self.report.lines())

    @staticmethod
    def name(_, path, places):
        start = next(start for start, _, file in SOS if file == path)
        for place in places:
            place.function = FUNCTIONS.get(start + place.offset, "")

    def made(self, how):
        out = io.StringIO()
        getattr(self.report, how)(out)
        return out.getvalue()

    def test_the_text_names_the_code_that_asked(self):
        for words in (
                r"\n40 MiB of it, 53%, were asked for by Block.forward \(model.py:29\) \(through "
                r"libc10_cuda.so, called by <module> \(train.py:7\)\)",
                r"\n *40 MiB +53% +Block.forward \(model.py:29\) +through libc10_cuda.so, called "
                r"by <module> \(train.py:7\)\n",
                r"\n *20 MiB +27% +native::clone +libtorch_cpu.so, through libc10_cuda.so, called "
                r"by Engine::evaluate_function",
                r"\n *10 MiB +13% +blas::gemm_and_bias +libtorch_cuda.so, through libcublas.so.13, "
                r"called by Engine::evaluate_func",
                r"\n *5 MiB +7% +main +train\n",
                r"\n *40 MiB +1 +Block.forward \(model.py:29\) +through libc10_cuda.so, ",
                r"Who held the peak\? +libc10_cuda.so 80%, libcublas.so.13 13%, train 7%\n"):
            self.assertRegex(self.text, words)

    def test_a_framework_called_if_nobody_else_did(self):
        self.write([(MIB, [ALLOCATE, CALL, CALL])])
        self.assertIn("by Module._call_impl (module.py:1790) (through libc10_cuda.so, called by "
                      "Module._call_impl (module.py:1790))", self.text)

    def test_plumbing_called_nobody(self):
        self.write([(MIB, [ALLOCATE, EMPTY, GEMM, WRAPPER, EMPTY, CLONE, ENGINE, MAIN])])
        self.assertIn("(libtorch_cuda.so, through libc10_cuda.so, called by native::clone, "
                      "Engine::evaluate_function, main)", self.text)

    def test_tables_and_sentences_have_a_width(self):
        long = ("Net." + "layer" * 19, "/me/" + "m" * 40 + ".py", 12345)
        self.write([(MIB, [ALLOCATE, *[long] * 9])])
        for columns in 120, 80, 40:
            with unittest.mock.patch.dict(os.environ, {} if columns == 120 else
                                          {"COLUMNS": str(columns)}):
                lines = "\n".join(self.report.lines()).splitlines()
            tables = lines[lines.index("Live at the peak"):]
            self.assertEqual([line for line in tables if len(line) > columns], [])
            self.assertEqual(len([line for line in tables if "…" in line]), 2)
            if columns > 40:
                self.assertRegex(tables[2], r"Net.layer\S*…\S*:12345\) +through libc10")
        self.assertLessEqual(len(self.report.explained().partition(").")[0]) + 2, 200)

    def test_pictures_agree_with_the_text(self):
        page = self.made("html")
        data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
        found = {its["name"]: its for its in data["series"]}
        self.assertEqual({*found}, {"Block.forward (model.py:29)", "native::clone",
                                    "blas::gemm_and_bias", "main"})
        self.assertEqual(found["Block.forward (model.py:29)"]["callers"],
                         ["<module> (train.py:7)", "Module._call_impl (module.py:1790)"])
        self.assertEqual(found["native::clone"]["callers"], ["main", "Engine::evaluate_function"])
        self.assertEqual(found["native::clone"]["detail"].split("\n"), [
            FUNCTIONS[its] for its in ASKS[1][1]])
        self.assertNotIn("detail", found["main"])
        row = page.partition("<h2>Live at the end</h2>")[2]
        self.assertIn(f'<span title="{html.escape(found["native::clone"]["detail"])}">native::clone'
                      '</span>', row)

    def test_paths_that_differ_in_plumbing_alone_are_one(self):
        self.write([*ASKS, (8 * MIB, [ALLOCATE, EMPTY, FORWARD, CALL, TRAIN]),
                    (MIB, [ALLOCATE, FORWARD, CALL, CALL, TRAIN]),
                    (2 * MIB, [CUBLAS, FORWARD, CALL, TRAIN])])
        self.assertRegex(self.text, r"\n48 MiB of it, 56%, were asked for by Block.forward ")
        for size, blocks in (48, 2), (2, 1), (1, 1):
            self.assertEqual(len(re.findall(rf"\n *{size} MiB +\d+% +Block.fo", self.text)), 1)
            self.assertEqual(len(re.findall(rf"\n *{size} MiB +{blocks} +Block.fo", self.text)), 1)
        page = self.made("html")
        series = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["series"]
        self.assertEqual(sorted(its["exit"] // MIB for its in series), [1, 2, 5, 10, 20, 48])
        row = page.partition("<h2>Live at the end</h2>")[2].partition("Block.forward")[2]
        self.assertRegex(row.partition("</tr>")[0], r'"n">48 MiB</td><td class="n">2</td>'
                                                    r'<td class="n">≤ 48 MiB</td>')

    def test_a_whole_name_has_a_length(self):
        with unittest.mock.patch.dict(FUNCTIONS, {CLONE: "a" * 9000 + "(int)"}):
            self.write(ASKS)
        self.assertLess(len(self.made("html")), 200_000)
        self.assertLess(report_page.DETAIL_MOST, 9000)

    @unittest.skipUnless(browser.PROGRAM, "no Chromium")
    def test_titles_of_the_page_have_whole_names(self):
        self.write([*ASKS[3:] * 20, ASKS[1]])
        path = self.path + ".html"
        put_text(path, self.made("html"))
        title = "[...document.querySelectorAll('%s')].find(its => " \
                "its.textContent.startsWith('native::clone')).title"
        with browser.Browser() as page:
            page.open("file://" + path)
            page.wait("document.querySelectorAll('.flame button').length")
            for place in ".flame button", "#changes td":
                said = page.run(title % place)
                for its in ASKS[1][1]:
                    self.assertIn("\n" + FUNCTIONS[its], "\n" + said, place)
            self.assertNotIn("(c10::", page.run("document.querySelector('main').innerText"))
            self.assertEqual(page.complaints, [])

    def test_machines_get_whole_names(self):
        rows = dict(row.rsplit(" ", 1) for row in self.made("collapsed").splitlines())
        self.assertEqual(rows, {
            "<module> (train.py:7);Module._call_impl (module.py:1790);Block.forward (model.py:29)":
                str(40 * MIB),
            f"main;{FUNCTIONS[ENGINE]};{FUNCTIONS[CLONE]}": str(20 * MIB),
            f"main;{FUNCTIONS[ENGINE]};{FUNCTIONS[GEMM]}": str(10 * MIB),
            "train;main": str(5 * MIB)})
        peak = next(row for row in json.loads(self.made("perfetto"))["traceEvents"]
                    if row["name"] == "peak")["args"]
        self.assertIn(" < ".join(FUNCTIONS[its] for its in ASKS[1][1]), peak)

    def test_without_names_it_is_the_first_other_library(self):
        """The program that was recorded ran elsewhere."""
        done = well("report", self.path)
        self.assertRegex(done.out, r"\n *20 MiB +27% +libtorch_cpu.so\+0x0 +libtorch_cpu.so, "
                                   r"through libc10_cuda.so, called by libtorch_cuda.so\+0x0, ")
