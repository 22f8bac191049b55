/* SPDX-License-Identifier: BSD-2-Clause */
/* The process parks itself, for the scenes of it. Bare, nothing is parked. */
#pragma once

#include "tests/preload/asker.h"
#include "tests/preload/scene.h"

/* Is device memory of the first pool on the host? */
static inline bool is_parked(void)
{
    return asker_figure("away_bytes") > 0;
}

/* Under the library the process is parked, or not. */
static inline void expect_parked(bool wanted)
{
    EXPECT(!asker_page() || is_parked() == wanted);
}

static inline void expect_code(int code, int wanted)
{
    if (code != wanted && code != -1)
        fprintf(stderr, "%s\n", asker_reply());
    EXPECT(code == wanted || code == -1);
}

/* Asks again while GPU work runs: how long it takes is the machine's. Work that never ends is the
 * watchdog's. */
static inline void park_as(const char *words, int wanted)
{
    int code;
    do
        code = asker_ask(words);
    while (code == PAGE_REPLY_REFUSED && strstr(asker_reply(), "GPU work still runs"));
    expect_code(code, wanted);
}

static inline void park(void)
{
    park_as("park wait=2000", PAGE_REPLY_DONE);
    expect_parked(true);
}

static inline void expect_refused(const char *why)
{
    expect_code(asker_ask("park wait=20"), PAGE_REPLY_REFUSED);
    if (asker_page() && !strstr(asker_reply(), why))
        fprintf(stderr, "%s\n", asker_reply());
    EXPECT(!asker_page() || strstr(asker_reply(), why));
    expect_parked(false);
}

static inline void wake(void)
{
    expect_code(asker_ask("wake"), PAGE_REPLY_DONE);
    expect_parked(false);
}
