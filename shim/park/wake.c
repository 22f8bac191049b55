/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See wake.h; the numbers below are those of its steps.
 */
#include "shim/park/wake.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/driver/closed.h"
#include "shim/page/client.h"
#include "shim/park/move.h"
#include "shim/park/room.h"
#include "shim/park/whole.h"
#include "shim/process/log.h"
#include "shim/process/text.h"
#include "shim/share/lend.h"
#include "shim/share/neighbour_use.h"

#include <stdio.h>

static uint64_t needs[DEVICES_MAX];

struct wait {
    int device;
    uint64_t bytes;
    struct neighbour_needs others;
    bool untold; /* by NVML */
    int code;    /* the driver's, although the device seems to have the memory; 0: it has not */
};

static struct wait waiting;
/* What the log is to say: the park thread writes no log while the gate is closed. It writes this
 * once in a wake, WAKE_TELL_NS after its begin, and the control thread reads it in the duty that
 * is due from then on. */
static struct wait news;

static uint64_t tell_of_wait(uint64_t now_ns)
{
    struct figure wants = text_fixed(news.bytes, UINT64_C(1) << 30, 1),
                  has = text_fixed(news.others.most_bytes, UINT64_C(1) << 30, 1);

    (void)now_ns;
    if (news.code)
        log_warn("the program waits for its device memory: the driver gives error %d", news.code);
    else if (news.untold)
        log_warn("the program waits: libnvidia-ml.so.1 does not tell what is free on device %d; "
                 "see whether nvidia-smi tells it",
                 news.device);
    else if (news.others.most_pid)
        log_warn("the program waits for %s GiB of device %d, whose memory is full: PID %llu holds "
                 "%s GiB",
                 wants.text, news.device, (unsigned long long)news.others.most_pid, has.text);
    else
        log_warn("the program waits for %s GiB of device %d, whose memory is full", wants.text,
                 news.device);
    return DUTY_NEVER;
}

static struct duty tell = {.run = tell_of_wait, .due_ns = DUTY_NEVER};

/* Free memory of a device; UINT64_MAX: not known. */
static uint64_t free_bytes(CUdevice device)
{
    uint64_t free_now = UINT64_MAX, total;
    bool closed = closed_is_now();

    waiting.untold = closed && !room_tell(device, &free_now);
    if (closed)
        return free_now;
    FOR_EACH_CONTEXT(c) {
        struct backend *b = &c->backend.base;

        if (c->device != device || !context_pin(c))
            continue;
        bool known = !b->ops->mem_info(b, &free_now, &total);
        context_unpin(c);
        if (known)
            return free_now;
    }
    return UINT64_MAX;
}

/* Step 2. The device with too little memory, and what is missing there; or one of which NVML does
 * not tell (waiting.untold). -1: all have enough. */
static CUdevice find_short(uint64_t since_ns, uint64_t *missing_bytes)
{
    for (CUdevice device = 0; device < DEVICES_MAX; device++) {
        struct neighbour_needs others;
        uint64_t free_now, wanted;

        if (!needs[device])
            continue;
        lend_look(device, since_ns, &others);
        free_now = free_bytes(device);
        if (__builtin_add_overflow(needs[device], others.older_bytes, &wanted))
            wanted = UINT64_MAX;
        if (free_now < wanted) {
            *missing_bytes = wanted - free_now;
            waiting.device = device;
            waiting.bytes = needs[device];
            waiting.others = others;
            return device;
        }
    }
    return -1;
}

/* Step 5. */
static CUdevice find_short_now(uint64_t since_ns, uint64_t *missing_bytes)
{
    if (whole_lost_code())
        return -1;
    CUdevice device = find_short(since_ns, missing_bytes);
    if (device >= 0 || !closed_is_now())
        return device;
    clock_sleep(WAKE_SECOND_LOOK_NS);
    return find_short(since_ns, missing_bytes);
}

/* NULL: the process waits for none. */
static void publish_needs(const uint64_t *bytes, uint64_t since_ns)
{
    for (int i = 0; i < DEVICES_MAX; i++)
        atomic_store(&publish_park.needs_bytes[i], bytes ? bytes[i] : 0);
    atomic_store(&publish_park.needs_since_ns, bytes ? since_ns : 0);
    publish_soon();
}

/* Step 3. device: -1: there seemed to be enough, and all the same a try failed. */
static void get_memory(CUdevice device, uint64_t missing_bytes, uint64_t *pause_ns)
{
    struct lend_attempt attempt = {0};

    for (CUdevice i = 0; device < 0 && i < DEVICES_MAX; i++)
        if (needs[i]) {
            device = i;
            missing_bytes = needs[i];
        }
    if (device >= 0 && !waiting.untold &&
        (context_release(device_bit(device), POOL_RELEASE_IDLE) ||
         (lend_ask(device_bit(device), missing_bytes, &attempt) &&
          !attempt.last_try))) /* a neighbour gave some */
        return;
    clock_sleep(*pause_ns / 2 + loan_request_jitter() % *pause_ns);
    *pause_ns = min_u64(2 * *pause_ns, WAKE_PAUSE_MOST_NS);
}

static uint64_t all_needs(void)
{
    uint64_t bytes = 0;

    for (CUdevice device = 0; device < DEVICES_MAX; device++)
        bytes += needs[device];
    return bytes;
}

void wake_say_why(int code, char why[PARK_WHY_BYTES])
{
    if (whole_lost_code())
        snprintf(why, PARK_WHY_BYTES, "the driver cannot restore the process: error %d",
                 whole_lost_code());
    else if (code == CUDA_ERROR_OPERATING_SYSTEM)
        snprintf(why, PARK_WHY_BYTES, "what went to %.160s cannot be read", move_place());
    else if (code != CUDA_ERROR_OUT_OF_MEMORY)
        snprintf(why, PARK_WHY_BYTES, "the driver gives error %d", code);
    else if (waiting.untold)
        snprintf(why, PARK_WHY_BYTES,
                 "libnvidia-ml.so.1 does not tell what is free on device %d; see whether "
                 "nvidia-smi tells it",
                 waiting.device);
    else
        snprintf(why, PARK_WHY_BYTES, "the device lacks memory: %s GiB are needed",
                 text_fixed(all_needs(), UINT64_C(1) << 30, 2).text);
}

int wake_run(bool with_arenas, wake_try *try_once, bool (*goes_on)(void), uint64_t until_ns,
             uint64_t *waited_ns)
{
    uint64_t since_ns = clock_now_ns(), missing_bytes = 0, pause_ns = WAKE_PAUSE_LEAST_NS;
    int code = CUDA_ERROR_OUT_OF_MEMORY;
    bool told = false, published = closed_is_now();

    *waited_ns = 0;
    whole_needs(with_arenas, needs);
    if (published)
        publish_needs(needs, since_ns);
    for (uint64_t now_ns = since_ns; goes_on(); now_ns = clock_now_ns()) {
        CUdevice device = find_short_now(since_ns, &missing_bytes);

        if (device < 0)
            code = try_once();
        /* Step 4. */
        if ((device < 0 && (!code || code == CUDA_ERROR_OPERATING_SYSTEM)) || whole_lost_code() ||
            now_ns >= until_ns)
            break;
        /* Less than before, if the program freed some. */
        publish_needs(needs, since_ns);
        published = true;
        if (!told && now_ns - since_ns >= WAKE_TELL_NS) {
            told = true;
            news = waiting;
            news.code = device < 0 ? code : 0;
            control_due(&tell, 0);
        }
        get_memory(device, missing_bytes, &pause_ns);
        *waited_ns = clock_now_ns() - since_ns;
        whole_needs(with_arenas, needs);
    }
    if (published)
        publish_needs(NULL, 0);
    return code;
}
