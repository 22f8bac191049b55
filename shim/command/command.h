/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room command/ carries out what other processes ask for through the page. Its one seam is the
 * table command.def: a row, and the function command_<name> in a file of its own, are a new
 * request. parse_command.c has the parser and makes replies; command.c has the duties that look at
 * the page.
 *
 * Why a request harms no process, whatever it says:
 *  1. It is parsed in a private copy (shim/page/page.h). A text that is not exactly a verb with its
 *     parameters does nothing: the reply says what is wrong.
 *  2. A request can do only what a signal or the environment of the process can do. A writer of the
 *     page has the user id of the process.
 *  3. The control thread carries requests out, one at a time, so they need no lock among
 *     themselves. Verbs with IN_CALM run only while no capture is open, as other flushes do.
 *  4. The work is bounded: a pass serves PAGE_SLOTS requests at most. Work that gives memory back
 *     waits COMMAND_WAIT_MS at most, and in turns (shim/control/gpu_wait.h). The function says when
 *     it is to be called again. Meanwhile the thread does other work. Such work begins
 *     COMMAND_PAUSE_NS after the end of the last such work, or later: the thread sleeps until then.
 *
 * Why each request gets a reply, while its page keeps its file:
 *  5. The duty `serve_new` finds every request that is not served (Note [Requests], 7 and 8), but
 *     for those that wait. Where the verb needs calm, it calls for the duty `serve_calm`, which
 *     finds the request again. thread.h says why no such call is lost, also while captures are
 *     open.
 *  6. Each request that a duty finds ends in page_answer_request, or stays unserved with a call for
 *     another pass.
 *  7. A request that waits is looked at again by the duty `serve_waiting`, which needs no calm, and
 *     by no other. Its text is read and parsed anew each time. A text that says something else by
 *     then is refused. So is a text of no words, by which an asker withdraws its request.
 *  8. A request is known by its slot, its number and the page's file. An asker that gave up may
 *     have left the slot to another, whose request has another number. In a new file the numbers
 *     begin again. So a request that waits is never taken for another one, and none for it. Once
 *     its slot holds another one, or none, the request that waits is forgotten.
 *  9. Note [Requests], step 8, says what becomes of the requests when the page gets another file.
 */
#ifndef SHIM_COMMAND_H
#define SHIM_COMMAND_H

#include "shim/page/server.h"
#include "shim/process/clock.h"
#include "shim/process/text.h"
#include "shim/stats/report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COMMAND_WORDS_MAX = 32, COMMAND_WAIT_MS = PAGE_WAIT_MS };
#define COMMAND_PAUSE_NS MS_NS

struct command_word {
    const char *name, *value; /* texts without blanks; the value may be "" */
};

/* A request, parsed. */
struct command {
    unsigned slot; /* of the page: one request at a time has its state there */
    bool again;    /* the function said that it waits */
    const char *verb;
    size_t num_words;
    struct command_word words[COMMAND_WORDS_MAX];
};

struct command_reply {
    struct text text; /* PAGE_REPLY_BYTES of room: a JSON object */
    uint64_t value;   /* for other programs; see page/layout.h */
    bool begins_park; /* page_note_park */
    /* Not 0: the request waits, and nothing else of the reply counts. The function is called again
     * at that time (CLOCK_MONOTONIC), whether a capture is open or not. */
    uint64_t again_ns;
};

/* The functions of the table. The reply's text is empty at first. */
#define COMMAND(name, when, parameters, help)                                                      \
    enum page_reply command_##name(const struct command *c, struct command_reply *reply);
#include "shim/command/command.def"
#undef COMMAND

/* The value of a parameter. NULL: it was left out. */
const char *command_value(const struct command *c, const char *name);
/* The value of a parameter that is a decimal number, at most `most`. *out is unchanged if it was
 * left out. False: it is no such number, and the reply says so (PAGE_REPLY_BAD). */
bool command_number(const struct command *c, const char *name, uint64_t most, uint64_t *out,
                    struct command_reply *reply);
/* The device of gpu=UUID or gpu=N. False: no pool is there. */
bool command_device(const char *gpu, const struct report_pool *pools, size_t num_pools,
                    int *device);
/* Makes the reply {"error":"..."}, with `code`. */
enum page_reply command_error(struct command_reply *reply, enum page_reply code, const char *format,
                              ...) __attribute__((format(printf, 3, 4)));

/* Parses the text, in place, by the table. Returns the row, or -1 with an error in the reply. */
int command_parse(char *text, size_t size_bytes, struct command *out, struct command_reply *reply);

/* The library has started: the doorbell of the page calls for the requests. */
void command_start(void);

#endif
