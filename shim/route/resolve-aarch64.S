/* SPDX-License-Identifier: BSD-2-Clause
 *
 * dlsym. The C library takes the caller's object from its return address, for RTLD_NEXT and
 * RTLD_DEFAULT: so whatever is not ours goes on by a branch, with x30, stack and arguments as they came.
 * Names that do not begin with "cu" touch no memory but two bytes of the name and one pointer.
 * No lock, no state; see resolve.h for what it asks.
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
        bl      resolve_pick            /* x0: the answer; x1: the handle to go on with */
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
        cbz     x16, answer             /* no dlsym anywhere: nothing is found */
        br      x16
answer:
        mov     x0, x16
        ret
pass:
        adrp    x16, symbol_real_dlsym
        ldr     x16, [x16, #:lo12:symbol_real_dlsym]
        cbz     x16, ask                /* the first call of all; also finds symbol_real_dlsym */
        br      x16
        .cfi_endproc
        .size   dlsym, . - dlsym

        .section .note.GNU-stack, "", %progbits

/* Branch targets are marked, return addresses signed: the process may keep both protections. */
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
