/* SPDX-License-Identifier: BSD-2-Clause
 *
 * dlsym. For RTLD_NEXT and RTLD_DEFAULT the C library finds the caller's object by the return
 * address. So a call that we do not answer goes to the C library by a jump, with stack and
 * arguments unchanged. For a name that does not begin with "cu" the stub reads only two bytes of
 * the name and one pointer. No lock, no state; resolve.h has the contract of resolve_pick.
 */
        .text
        .globl  dlsym
        .type   dlsym, @function
        .hidden symbol_real_dlsym
        .hidden resolve_pick
        .p2align 4
dlsym:
        .cfi_startproc
        testq   %rsi, %rsi
        je      pass
        cmpb    $'c', (%rsi)
        jne     pass
        cmpb    $'u', 1(%rsi)
        jne     pass
ask:
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp                /* the ABI's 16-byte alignment */
        .cfi_adjust_cfa_offset 8
        call    resolve_pick            /* rax: the answer; rdx: the handle for the C library */
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rax, %rax
        jne     answer
        movq    %rdx, %rdi
        movq    symbol_real_dlsym(%rip), %rax
        testq   %rax, %rax
        je      answer                  /* there is no other dlsym: the answer is NULL */
        jmp     *%rax
answer:
        ret
pass:
        movq    symbol_real_dlsym(%rip), %rax
        testq   %rax, %rax
        je      ask                     /* first call: resolve_pick sets symbol_real_dlsym */
        jmp     *%rax
        .cfi_endproc
        .size   dlsym, . - dlsym

        .section .note.GNU-stack, "", @progbits

/* Calls and returns are balanced, so the process may keep its shadow stack. The note does not claim
 * IBT: it needs endbr64 at the entries, and tools that patch entries cannot move that instruction.
 * Linux has no user-space IBT. */
        .section .note.gnu.property, "a", @note
        .p2align 3
        .long   4                       /* name size */
        .long   16                      /* description size */
        .long   5                       /* NT_GNU_PROPERTY_TYPE_0 */
        .asciz  "GNU"
        .long   0xc0000002              /* GNU_PROPERTY_X86_FEATURE_1_AND */
        .long   4
        .long   2                       /* SHSTK */
        .long   0
