/* SPDX-License-Identifier: BSD-2-Clause */
/* Requests of the process to the library that it runs under, through its own page. Bare, and where
 * there is no page, nothing is asked. One thread asks at a time. */
#pragma once

#include "shim/page/layout.h"

#include <stdbool.h>

/* The page of this process, which is the only file of its folder; waits until it is there. NULL:
 * the process has none. */
struct page *asker_page(void);

/* The code of the reply to a request; -1: nothing was asked. Waits for it, as long as the scene's
 * watchdog does. */
int asker_ask(const char *words);

/* The text of the last reply. Of the calling thread's own. */
const char *asker_reply(void);
/* The latest state that the page has. The library may write the next one meanwhile. */
const char *asker_body(void);

/* A figure of the page's state of now, such as "num_wakes": the first of that name. */
uint64_t asker_figure(const char *name);
