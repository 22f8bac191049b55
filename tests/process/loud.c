/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A library that gives itself away when it is preloaded, in a way that only system calls show. The
 * transparency test has to notice it.
 */
#include <unistd.h>

__attribute__((constructor)) static void give_away(void)
{
    (void)getppid();
}
