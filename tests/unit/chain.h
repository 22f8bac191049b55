/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls `f` from a known chain of frames: CHAIN_FRAMES and `depth` of them at least. In two builds.
 */
#ifndef TESTS_CHAIN_H
#define TESTS_CHAIN_H

typedef void chain_do(void);
enum { CHAIN_FRAMES = 8 };

void chain_with_frame_pointers(chain_do *f, int depth);
void chain_without(chain_do *f, int depth);

#endif
