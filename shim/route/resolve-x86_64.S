/* SPDX-License-Identifier: BSD-2-Clause
 *
 * dlsym. The C library takes the caller's object from its return address, for RTLD_NEXT and
 * RTLD_DEFAULT: so whatever is not ours goes on by a jump, with stack and arguments as they came.
 * Names that do not begin with "cu" touch no memory but two bytes of the name and one pointer.
 * No lock, no state; see resolve.h for what it asks.
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
        call    resolve_pick            /* rax: the answer; rdx: the handle to go on with */
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
        je      answer                  /* no dlsym anywhere: nothing is found */
        jmp     *%rax
answer:
        ret
pass:
        movq    symbol_real_dlsym(%rip), %rax
        testq   %rax, %rax
        je      ask                     /* the first call of all; also finds symbol_real_dlsym */
        jmp     *%rax
        .cfi_endproc
        .size   dlsym, . - dlsym

        .section .note.GNU-stack, "", @progbits

/* Calls and returns stay balanced, so the process may keep its shadow stack. No IBT: it needs
 * endbr64 at the entries. Tools that patch entries cannot move it, and Linux has no IBT for
 * programs. */
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
