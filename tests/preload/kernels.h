/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of the test programs, as one PTX text: a real driver compiles it, the simulated one
 * knows the entries by name. Every kernel strides over the whole grid, so that any launch size does
 * all of the work; sizes count 32-bit words.
 *
 *   fill      (ptr, n_words, value)                     ptr[i] = value
 *   copy      (dst, src, n_words)                       dst[i] = src[i]
 *   check     (ptr, n_words, value, errors_ptr)         *errors_ptr += words that differ from value
 *   spin      (ns)                                      busy for ns of the GPU's clock
 *   spin_fill (ptr, n_words, value, ns)                 busy for ns, then fill: a late writer
 *   spin_check(ptr, n_words, value, errors_ptr, ns)     busy for ns, then check: a late reader
 *   wait_flag (flag_ptr)                                busy until *flag_ptr is not 0
 *
 * Pointers, n_words and ns are u64, value is u32; errors_ptr and flag_ptr point to a u32. In the
 * text the parameters are p (or q, the source), n, v, e and ns. ISO C takes literals of 4095 bytes.
 */
#pragma once

/* clang-format off */

#define KERNEL_BODY "{\n.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %d<14>;\n"

/* p, n and v into %d4, %d5 and %r5; e into %d8. */
#define KERNEL_LOAD_PNV                        \
    "ld.param.u64 %d4, [p];\n"                 \
    "ld.param.u64 %d5, [n];\n"                 \
    "ld.param.u32 %r5, [v];\n"
#define KERNEL_LOAD_E                          \
    "ld.param.u64 %d8, [e];\n"

/* The first thread's index into %d1 and the stride of the grid into %d2. */
#define KERNEL_STRIDE                          \
    "mov.u32 %r1, %ctaid.x;\n"                 \
    "mov.u32 %r2, %ntid.x;\n"                  \
    "mov.u32 %r3, %tid.x;\n"                   \
    "mul.wide.u32 %d1, %r1, %r2;\n"            \
    "cvt.u64.u32 %d3, %r3;\n"                  \
    "add.u64 %d1, %d1, %d3;\n"                 \
    "mov.u32 %r4, %nctaid.x;\n"                \
    "mul.wide.u32 %d2, %r4, %r2;\n"

/* Busy until the clock has moved by ns. */
#define KERNEL_SPIN                            \
    "ld.param.u64 %d10, [ns];\n"               \
    "mov.u64 %d11, %globaltimer;\n"            \
    "SPIN:\n"                                  \
    "mov.u64 %d12, %globaltimer;\n"            \
    "sub.u64 %d13, %d12, %d11;\n"              \
    "setp.lt.u64 %p1, %d13, %d10;\n"           \
    "@%p1 bra SPIN;\n"

/* A loop over the index %d1 below %d5, with i * 4 in %d6 and the address of p[i] in %d7. */
#define KERNEL_LOOP                            \
    "LOOP:\n"                                  \
    "setp.ge.u64 %p1, %d1, %d5;\n"             \
    "@%p1 bra DONE;\n"                         \
    "shl.b64 %d6, %d1, 2;\n"                   \
    "add.u64 %d7, %d4, %d6;\n"
#define KERNEL_NEXT                            \
    "add.u64 %d1, %d1, %d2;\n"                 \
    "bra LOOP;\n"                              \
    "DONE:\n"

#define KERNEL_FILL                            \
    KERNEL_STRIDE KERNEL_LOOP                  \
    "st.u32 [%d7], %r5;\n"                     \
    KERNEL_NEXT                                \
    "ret;\n}\n"

#define KERNEL_COPY                            \
    KERNEL_STRIDE KERNEL_LOOP                  \
    "add.u64 %d9, %d8, %d6;\n"                 \
    "ld.u32 %r5, [%d9];\n"                     \
    "st.u32 [%d7], %r5;\n"                     \
    KERNEL_NEXT                                \
    "ret;\n}\n"

#define KERNEL_CHECK                           \
    "mov.u32 %r6, 0;\n"                        \
    KERNEL_STRIDE KERNEL_LOOP                  \
    "ld.u32 %r7, [%d7];\n"                     \
    "setp.ne.u32 %p2, %r7, %r5;\n"             \
    "@%p2 add.u32 %r6, %r6, 1;\n"              \
    KERNEL_NEXT                                \
    "setp.eq.u32 %p1, %r6, 0;\n"               \
    "@%p1 ret;\n"                              \
    "atom.add.u32 %r8, [%d8], %r6;\n"          \
    "ret;\n}\n"

#define KERNEL_WAIT                            \
    "WAIT:\n"                                  \
    "ld.volatile.u32 %r5, [%d4];\n"            \
    "setp.eq.u32 %p1, %r5, 0;\n"               \
    "@%p1 bra WAIT;\n"                         \
    "ret;\n}\n"

static const char kernels_ptx[] =
    ".version 6.3\n"
    ".target sm_75\n"
    ".address_size 64\n"

    ".visible .entry fill(.param .u64 p, .param .u64 n, .param .u32 v)\n"
    KERNEL_BODY KERNEL_LOAD_PNV KERNEL_FILL

    ".visible .entry copy(.param .u64 p, .param .u64 q, .param .u64 n)\n"
    KERNEL_BODY
    "ld.param.u64 %d4, [p];\n"
    "ld.param.u64 %d8, [q];\n"
    "ld.param.u64 %d5, [n];\n"
    KERNEL_COPY

    ".visible .entry check(.param .u64 p, .param .u64 n, .param .u32 v, .param .u64 e)\n"
    KERNEL_BODY KERNEL_LOAD_PNV KERNEL_LOAD_E KERNEL_CHECK

    ".visible .entry spin(.param .u64 ns)\n"
    KERNEL_BODY KERNEL_SPIN "ret;\n}\n"

    ".visible .entry spin_fill(.param .u64 p, .param .u64 n, .param .u32 v, .param .u64 ns)\n"
    KERNEL_BODY KERNEL_LOAD_PNV KERNEL_SPIN KERNEL_FILL

    ".visible .entry spin_check(.param .u64 p, .param .u64 n, .param .u32 v, .param .u64 e,\n"
    ".param .u64 ns)\n"
    KERNEL_BODY KERNEL_LOAD_PNV KERNEL_LOAD_E KERNEL_SPIN KERNEL_CHECK

    ".visible .entry wait_flag(.param .u64 p)\n"
    KERNEL_BODY
    "ld.param.u64 %d4, [p];\n"
    KERNEL_WAIT;

/* clang-format on */
