/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See page/server.h; the numbers below are the steps of the Notes in README.md.
 */
#include "shim/page/server.h"

#include "shim/page/map.h"
#include "shim/process/clock.h"
#include "shim/process/futex.h"
#include "shim/process/own_thread.h"

#include <string.h>

/* The thread only waits and calls on_request(). */
#define DOORBELL_STACK_BYTES (128 * 1024)
#define MORE_DOORBELLS 7 /* threads: a bound */

static uint32_t served[PAGE_SLOTS]; /* the sequences of the last requests */
static uint32_t parks[PAGE_SLOTS];  /* .. and of the last ones for which a park began */
static unsigned served_file;        /* of the file with this count */
static void (*on_request)(void);
static bool lacks_doorbell; /* no thread waits at the file of now */

/* The sequences of a new file begin at 0. */
static void begin_file(void)
{
    unsigned count = page_map_count();

    if (count != served_file) {
        memset(served, 0, sizeof served);
        memset(parks, 0, sizeof parks);
    }
    served_file = count;
}

bool page_read_request(unsigned slot, struct page_request *out)
{
    uint32_t ask_bytes;

    begin_file();
    if (!page_get(page_own(), &out->sequence, PAGE_SLOT_OFFSET(slot, ask_sequence),
                  sizeof out->sequence) ||
        out->sequence == served[slot] ||
        !page_get(page_own(), &ask_bytes, PAGE_SLOT_OFFSET(slot, ask_bytes), sizeof ask_bytes) ||
        !page_get(page_own(), out->ask, PAGE_SLOT_OFFSET(slot, ask), PAGE_ASK_BYTES))
        return false;
    out->slot = slot;
    out->file = served_file;
    out->ask_bytes = ask_bytes <= PAGE_ASK_BYTES ? ask_bytes : PAGE_ASK_BYTES; /* step 2 */
    out->ask[out->ask_bytes] = '\0';
    return true;
}

/* The words of a slot from reply_bytes to reply_value. */
struct reply_head {
    uint32_t reply_bytes, reply_code, parks_sequence;
    uint64_t reply_value;
} __attribute__((packed));

_Static_assert(sizeof(struct reply_head) ==
                   offsetof(struct page_slot, ask) - offsetof(struct page_slot, reply_bytes),
               "layout");

void page_note_park(const struct page_request *r)
{
    if (page_map_count() != r->file)
        return;
    parks[r->slot] = r->sequence;
    page_put(page_own(), &r->sequence, PAGE_SLOT_OFFSET(r->slot, parks_sequence),
             sizeof r->sequence);
}

void page_answer_request(const struct page_request *r, const struct page_answer *answer)
{
    if (page_map_count() != r->file) /* the asker is at the file before */
        return;
    size_t sequence_at = PAGE_SLOT_OFFSET(r->slot, reply_sequence);
    size_t text_bytes = answer->text_bytes <= PAGE_REPLY_BYTES ? answer->text_bytes : 0;
    struct reply_head head = {(uint32_t)text_bytes, (uint32_t)answer->code, parks[r->slot],
                              answer->value};
    const struct page_piece pieces[] = {
        {&head, PAGE_SLOT_OFFSET(r->slot, reply_bytes), sizeof head},
        {answer->text, PAGE_SLOT_OFFSET(r->slot, reply), text_bytes}};

    served[r->slot] = r->sequence; /* step 8 */
    if (page_put_all(page_own(), pieces, 2) &&
        page_put(page_own(), &r->sequence, sequence_at, sizeof r->sequence))
        page_wake(page_own(), sequence_at);
}

void page_refuse_requests(void)
{
    static const char text[] = "{\"error\":\"the page is made anew: ask again there\"}";
    static struct page_request r;

    for (unsigned slot = 0; slot < PAGE_SLOTS; slot++)
        if (page_read_request(slot, &r))
            page_answer_request(&r, &(struct page_answer){.code = PAGE_REPLY_REFUSED,
                                                          .text = text,
                                                          .text_bytes = sizeof text - 1});
}

static void listen(void)
{
    uint32_t seen;

    while (page_get(page_own(), &seen, offsetof(struct page, doorbell), sizeof seen)) { /* step 7 */
        on_request();
        clock_sleep(PAGE_REST_NS); /* step 6 */
        if (!page_wait(page_own(), offsetof(struct page, doorbell), seen, FUTEX_FOREVER))
            break;
    }
}

static bool start(void)
{
    static const struct own_thread thread = {"gpucache-bell", DOORBELL_STACK_BYTES, listen};

    return own_thread_start(&thread);
}

bool page_start_doorbell(void (*run)(void))
{
    on_request = run;
    lacks_doorbell = !start();
    return !lacks_doorbell;
}

bool page_renew_doorbell(void)
{
    static unsigned num_more;

    lacks_doorbell |= page_map_left_waiter();
    if (lacks_doorbell && num_more < MORE_DOORBELLS && start()) {
        num_more++;
        lacks_doorbell = false;
    }
    return !lacks_doorbell;
}
