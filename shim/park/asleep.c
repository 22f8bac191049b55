/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See asleep.h; the numbers below are those of its steps. The state belongs to the
 * control thread.
 */
#include "shim/park/asleep.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/context/submitter.h"
#include "shim/control/flush.h"
#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/driver/capture.h"
#include "shim/option/in_force.h"
#include "shim/park/held.h"
#include "shim/park/park.h"
#include "shim/process/own_thread.h"

#include <string.h>

#define LEAST_LOOK_NS (5 * MS_NS)
#define PARK_WAIT_NS (100 * MS_NS)

static uint64_t run_watch(uint64_t now_ns);
static struct duty watch = {.run = run_watch, .needs_calm = true, .due_ns = DUTY_NEVER};

static uint64_t uses;            /* at the last look */
static uint64_t look_ns;         /* when that was */
static uint64_t used_ns;         /* no use is older than this that came before `since_ns` */
static uint64_t since_ns;        /* the first look with this count */
static bool is_idle;             /* no work runs since */
static uint64_t question;        /* to the packages, before a park; 0: none */
static uint64_t answer_until_ns; /* .. and how long it waits for their answer */
static uint64_t tried_ns;        /* the last time that it began to park itself */
static unsigned doublings;       /* step 2 */
static uint64_t judged_ns;       /* the wake that they count already */

/* Step 4: parks for neighbours that brought nothing since the last use; the last one, and the least
 * of what they were to bring. */
static struct vain {
    unsigned times;
    uint64_t at_ns, bytes;
} vain[DEVICES_MAX];

static bool is_quiet(void)
{
    bool idle = true;

    if (!own_visit_begin())
        return true; /* no work runs while the driver is closed */
    FOR_EACH_CONTEXT(c) {
        if (!idle || !(idle = context_pin(c)))
            break;
        idle = pool_is_idle(c->pool);
        context_unpin(c);
    }
    own_visit_end();
    return idle;
}

/* Step 1. */
static void take_look(uint64_t now_ns)
{
    uint64_t count = submitters_uses();

    if (count != uses || !look_ns || atomic_load(&park_last.woke_ns) > since_ns) {
        uses = count;
        used_ns = look_ns;
        since_ns = now_ns;
        is_idle = false;
        question = 0;
        memset(vain, 0, sizeof vain);
    }
    look_ns = now_ns;
    if (!is_idle && since_ns != now_ns)
        is_idle = is_quiet();
}

static uint64_t doubled(uint64_t option_ns, unsigned times)
{
    uint64_t ns = option_ns;

    while (times-- && ns < ASLEEP_MOST_NS)
        ns = min_u64(2 * ns, ASLEEP_MOST_NS);
    return ns;
}

/* Step 2. */
static uint64_t idle_time_ns(uint64_t option_ns)
{
    uint64_t woke = atomic_load(&park_last.woke_ns), cost = atomic_load(&park_last.cost_ns);

    if (woke && woke != judged_ns) {
        uint64_t awake_ns = used_ns > woke ? used_ns - woke : 0;

        judged_ns = woke;
        if (woke - atomic_load(&park_last.parked_ns) >= ASLEEP_LONG_NS)
            doublings = 0;
        else if (awake_ns < ASLEEP_WORTH * cost && doubled(option_ns, doublings) < ASLEEP_MOST_NS)
            doublings++;
    }
    return doubled(option_ns, doublings);
}

static void park_itself(uint64_t now_ns)
{
    const struct park_wish wish = {.reason = PARK_IDLE, .device = -1, .wait_ns = PARK_WAIT_NS};
    const struct empty_cache all = {.device = -1};
    struct framework_result ignored[NUM_FRAMEWORKS];

    if (!question) {
        flush_pools(&all, 0, "park");
        question = flush_ask_frameworks();
        answer_until_ns = now_ns + FRAMEWORK_WAIT_NS;
    }
    if (question && !framework_has_answered(question, ignored) && now_ns < answer_until_ns)
        return;
    flush_pools(&all, 0, "park");
    if (park_begin(&wish)) {
        question = 0;
        tried_ns = now_ns;
    }
}

/* Step 3. */
static bool is_asleep(uint64_t now_ns)
{
    uint64_t lend_ns = in_force()->park.lend_ns;

    return !in_force()->park.off && lend_ns && is_idle && uses == submitters_uses() &&
           now_ns - since_ns >= lend_ns;
}

static void publish(uint64_t asleep_ns)
{
    if (atomic_exchange(&publish_park.asleep_since_ns, asleep_ns) != asleep_ns)
        publish_soon();
}

static uint64_t run_watch(uint64_t now_ns)
{
    const struct option_park *option = &in_force()->park;
    uint64_t idle_ns = option->idle_ns, lend_ns = option->lend_ns;
    uint64_t least_ns = idle_ns && lend_ns ? min_u64(idle_ns, lend_ns) : idle_ns + lend_ns;

    if (option->off || !least_ns) {
        publish(0);
        look_ns = 0;
        return DUTY_NEVER;
    }
    bool parked = park_is_parked(); /* before the look, which then sees the wake that ended it */
    take_look(now_ns);
    uint64_t asleep_ns = is_idle ? now_ns - since_ns : 0;
    publish(is_asleep(now_ns) && held_bytes_here(-1) ? since_ns : 0);
    if (idle_ns && is_idle && !parked && asleep_ns >= idle_time_ns(idle_ns) &&
        now_ns - tried_ns >= doubled(idle_ns, atomic_load(&park_last.refusals)))
        park_itself(now_ns);
    return control_after(now_ns, question ? LEAST_LOOK_NS : max_u64(least_ns / 4, LEAST_LOOK_NS));
}

bool asleep_may_lend(int device, uint64_t bytes)
{
    const struct vain *v = &vain[device % DEVICES_MAX];
    uint64_t now_ns = clock_now_ns(), pause_ns = ASLEEP_VAIN_NS << min_u64(v->times, 5) >> 1;

    return is_asleep(now_ns) && held_bytes_here(device) &&
           (!v->times || bytes < v->bytes || now_ns - v->at_ns >= pause_ns);
}

void asleep_lent_nothing(int device, uint64_t bytes)
{
    struct vain *v = &vain[device % DEVICES_MAX];

    v->bytes = v->times ? min_u64(v->bytes, bytes) : bytes;
    v->times++;
    v->at_ns = clock_now_ns();
}

void asleep_options_changed(void)
{
    atomic_store(&park_last.refusals, 0);
    memset(vain, 0, sizeof vain);
    control_due(&watch, 0);
}
