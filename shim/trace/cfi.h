/* SPDX-License-Identifier: BSD-2-Clause
 *
 * How to leave a frame, by the address at which it goes on: where the return address of its caller
 * lies, and the caller's rbp. From the tables for exceptions of the loaded object (.eh_frame_hdr
 * and .eh_frame; System V ABI and DWARF 5, section 6.4). For x86-64; elsewhere a path is the caller
 * alone.
 *
 * An own reader in place of libgcc's: that one aborts the process at tables that it does not
 * understand, calls dlopen, and does not tell which register a rule counts from.
 *
 * 1. The address is a return address on the caller's own stack. So its object stays loaded
 *    meanwhile (shim/loader/scope.h, 4), and its code is readable.
 * 2. The object is found by dl_iterate_phdr, which waits for no code of the program (scope.h, 1 to
 *    3). A process that was forked without an exec must not come here.
 * 3. Each byte is read within the loaded, readable segment that it is expected in. Whatever is not
 *    understood is no rule.
 *
 * No memory of its own, no state, no lock but that of 2. Keeps errno. Some microseconds.
 */
#ifndef SHIM_CFI_H
#define SHIM_CFI_H

#include <stdbool.h>
#include <stdint.h>

#define CFI_WORDS_MOST ((1 << 17) - 1)
#define CFI_RBP_MOST 63

/* The canonical frame address (CFA) is the caller's rsp behind the call. The return address lies 8
 * bytes below it. */
struct cfi_rule {
    bool is_from_rbp;   /* the CFA counts from rbp; or else from rsp */
    bool loses_rbp;     /* the caller's rbp is not known */
    uint8_t rbp_words;  /* it lies so many below the CFA; 0: the register has it, or loses_rbp */
    uint32_t cfa_words; /* of 8 bytes, up to the CFA; never 0 */
};

/* CFI_NO_CALL: no loaded code with a call stands before the address. CFI_NO_RULE: it does, but the
 * path ends here. *out is set for CFI_RULE alone. */
enum cfi_found { CFI_NO_CALL, CFI_NO_RULE, CFI_RULE };
enum cfi_found cfi_find(uintptr_t return_address, struct cfi_rule *out);

#endif
