/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A library that gives itself away when it is preloaded: by a system call, and by a descriptor that
 * programs see. Each check of the transparency test has to notice it. Its name is as good as the
 * library's own there.
 */
#include <unistd.h>

__attribute__((constructor)) static void give_away(void)
{
    (void)dup(STDIN_FILENO);
}
