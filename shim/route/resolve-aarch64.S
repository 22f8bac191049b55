/* SPDX-License-Identifier: BSD-2-Clause
 *
 * dlsym. For RTLD_NEXT and RTLD_DEFAULT the C library finds the caller's object by the return
 * address. So a call that we do not answer goes to the C library by a branch, with x30, stack and
 * arguments unchanged. For a name that does not begin with "cu" the stub reads only two bytes of
 * the name and one pointer. No lock, no state; resolve.h has the contract of resolve_pick.
 */
        .text
        .globl  dlsym
        .type   dlsym, %function
        .hidden symbol_real_dlsym
        .hidden resolve_pick
        .p2align 4
dlsym:
        .cfi_startproc
        hint    #34                     /* bti c */
        cbz     x1, pass
        ldrb    w16, [x1]
        cmp     w16, #'c'
        b.ne    pass
        ldrb    w16, [x1, #1]
        cmp     w16, #'u'
        b.ne    pass
ask:
        hint    #25                     /* paciasp */
        .cfi_negate_ra_state
        stp     x29, x30, [sp, #-32]!
        .cfi_def_cfa_offset 32
        .cfi_offset x29, -32
        .cfi_offset x30, -24
        mov     x29, sp
        str     x1, [sp, #16]
        bl      resolve_pick            /* x0: the answer; x1: the handle for the C library */
        mov     x16, x0
        mov     x0, x1
        ldr     x1, [sp, #16]
        ldp     x29, x30, [sp], #32
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        hint    #29                     /* autiasp */
        .cfi_negate_ra_state
        cbnz    x16, answer
        adrp    x16, symbol_real_dlsym
        ldr     x16, [x16, #:lo12:symbol_real_dlsym]
        cbz     x16, answer             /* there is no other dlsym: the answer is NULL */
        br      x16
answer:
        mov     x0, x16
        ret
pass:
        adrp    x16, symbol_real_dlsym
        ldr     x16, [x16, #:lo12:symbol_real_dlsym]
        cbz     x16, ask                /* first call: resolve_pick sets symbol_real_dlsym */
        br      x16
        .cfi_endproc
        .size   dlsym, . - dlsym

        .section .note.GNU-stack, "", %progbits

/* Branch targets are marked and return addresses signed, so the process may keep BTI and PAC. */
        .section .note.gnu.property, "a", %note
        .p2align 3
        .long   4                       /* name size */
        .long   16                      /* description size */
        .long   5                       /* NT_GNU_PROPERTY_TYPE_0 */
        .asciz  "GNU"
        .long   0xc0000000              /* GNU_PROPERTY_AARCH64_FEATURE_1_AND */
        .long   4
        .long   3                       /* BTI, PAC */
        .long   0
