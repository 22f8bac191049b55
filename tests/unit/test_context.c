/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/context/context.c: a record serves one life of its context, and no later one. The driver,
 * its primary context and the pool are stood in for. Calls that threads make beside each other are
 * made in the one order that matters. */
#include "pool/host_memory.h"
#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/device.h"
#include "shim/process/state.h"
#include "tests/unit/cases.h"

_Atomic uint32_t state_detours_now;
_Atomic int state_now = STATE_ON;
struct hooks_real real;
__thread int call_scope_depth __attribute__((tls_model("initial-exec")));
__thread unsigned char device_ends_of[BACKENDS_MAX] __attribute__((tls_model("initial-exec")));
__thread int device_frees_here __attribute__((tls_model("initial-exec")));

/* The driver has one context. A life of it has an id of its own. */
static char handle;
static CUcontext const the_context = (CUcontext)&handle;
static bool is_alive, is_primary;
static unsigned long long life;
static void (*after_look)(void); /* what other threads do once the driver has answered */
static int num_abandoned;

/* Of the test: the record of its context, and its ender. */
static struct context *c;
static struct context_end end;

static CUresult work_error; /* of earlier work, in place of the answers */

static CUresult get_version(CUcontext ctx, unsigned *version)
{
    *version = 13000;
    if (work_error)
        return work_error;
    return is_alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* The last question of each look. */
static CUresult get_id(CUcontext ctx, unsigned long long *id)
{
    CUresult rc = is_alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    void (*others)(void) = after_look;
    *id = life;
    after_look = NULL;
    if (others)
        others();
    if (work_error)
        *id = 0;
    return work_error ? work_error : rc;
}

static CUresult get_current(CUcontext *ctx)
{
    *ctx = the_context;
    return CUDA_SUCCESS;
}

CUcontext device_primary(CUdevice device)
{
    return is_primary ? the_context : NULL;
}

bool device_primary_is_active(CUdevice device)
{
    return is_primary && is_alive;
}

void *host_pages(size_t size_bytes)
{
    return calloc(1, size_bytes);
}

static unsigned num_turns;
static atomic_uint *ends_after_a_turn; /* visits, which other threads end then */

void spin_pause(unsigned turn)
{
    assert_true(num_turns++ < 2 * CONTEXT_AWAIT_TURNS); /* else for ever */
    if (ends_after_a_turn && turn)
        atomic_store(ends_after_a_turn, 0);
}

/* From its begin on no thread visits, and those that wait for a fence find it lost. */
void pool_abandon(struct pool *p)
{
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_OVER);
    num_abandoned++;
}

void pool_forget_thread(void)
{
}

/* A record being made for the first life of the context. */
static void start_record(bool primary)
{
    static char pool;
    atomic_store(&real.cuCtxGetApiVersion, get_version);
    atomic_store(&real.cuCtxGetId, get_id);
    atomic_store(&real.cuCtxGetCurrent, get_current);
    is_alive = true;
    is_primary = primary;
    life = 1;
    num_abandoned = 0;
    num_turns = 0;
    after_look = NULL;
    c = context_add(the_context, 0);
    assert_non_null(c);
    c->pool = (struct pool *)(void *)&pool;
    atomic_store(&c->hidden, false);
}

static void make_record(bool primary)
{
    start_record(primary);
    assert_true(context_made(c, the_context));
    assert_ptr_equal(context_find(the_context), c);
}

static int with_primary(void **state)
{
    make_record(true);
    return 0;
}

static int with_created(void **state)
{
    make_record(false);
    return 0;
}

/* The next test finds no record of the context. */
static void end_record(void)
{
    if (c->state != CONTEXT_ENDED)
        context_retire(c);
    atomic_store(&c->handle, NULL);
}

static int teardown(void **state)
{
    end_record();
    return 0;
}

/* The steps of an ender after the driver's answer. */
static bool judge_as(struct context_end *e, bool done)
{
    context_end_returned(e);
    bool over = context_end_judge(e, c, done);
    if (over)
        context_abandon(c);
    else if (context_end_holds(e, c) && (context_unhide(c), true))
        context_show(c);
    return over;
}

static void judge(struct context_end *e)
{
    judge_as(e, true);
}

TEST_WITH(a_release_that_ends_nothing_leaves_the_record, with_primary, teardown)
{
    context_release_begins(&end, 0, false);
    assert_null(context_find(the_context));
    judge(&end);
    assert_ptr_equal(context_find(the_context), c);
    assert_int_equal(num_abandoned, 0);
}

TEST_WITH(a_release_ends_the_record_though_the_next_life_has_begun, with_primary, teardown)
{
    context_release_begins(&end, 0, false);
    life = 2; /* the driver ended the first; another thread retained the context anew */
    judge(&end);
    assert_null(context_find(the_context));
    assert_int_equal(num_abandoned, 1);
}

TEST_WITH(a_record_made_for_an_earlier_life_is_not_found, NULL, teardown)
{
    start_record(true);
    life = 2;
    assert_false(context_made(c, the_context));
    assert_null(context_find(the_context));
    assert_int_equal(num_abandoned, 1);
}

/* The program makes another context, and the driver answers with the error of earlier work. */
TEST_WITH(a_context_is_not_over_because_work_has_failed, with_created, teardown)
{
    struct context_end unseen = {.device = -1, .created = true};
    work_error = CUDA_ERROR_ILLEGAL_ADDRESS;
    judge(&unseen);
    assert_int_equal(num_abandoned, 0);
    assert_ptr_equal(context_find(the_context), c);
    work_error = CUDA_SUCCESS;
    life = 2;
    judge(&unseen);
    assert_int_equal(num_abandoned, 1);
}

static void end_context(void)
{
    is_alive = false;
    judge(&end);
}

static void destroy(void)
{
    context_destroy_begins(&end, the_context);
    end_context();
}

TEST_WITH(a_record_is_not_found_if_its_context_ends_after_the_makers_look, NULL, teardown)
{
    start_record(false);
    after_look = destroy;
    assert_false(context_made(c, the_context));
    assert_null(context_find(the_context));
    assert_int_equal(num_abandoned, 1);
}

TEST_WITH(a_destroyer_waits_for_visits, with_created, teardown)
{
    atomic_store(&c->backend.visits, 2);
    ends_after_a_turn = &c->backend.visits;
    context_destroy_begins(&end, the_context);
    ends_after_a_turn = NULL;
    assert_int_equal(num_turns, 2);
    end_context();
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_OVER);
}

/* A signal handler destroys the context in the middle of its own thread's visit. */
TEST_WITH(a_destroyer_waits_for_no_visit_of_its_own, with_created, teardown)
{
    atomic_store(&c->backend.visits, 1);
    call_scope_depth = 1;
    context_destroy_begins(&end, the_context);
    assert_int_equal(num_turns, 0);
    call_scope_depth = 0;
    atomic_store(&c->backend.visits, 0);
    end_context();
}

/* The same in the middle of its own thread's question. */
TEST_WITH(a_destroyer_waits_for_no_question_of_its_own, with_created, teardown)
{
    assert_true(context_pin(c));
    context_destroy_begins(&end, the_context);
    assert_int_equal(num_turns, 0);
    end_context();
    context_unpin(c);
}

/* A host function that the visit waits for may wait for the destroyer. */
TEST_WITH(a_destroyer_does_not_wait_for_ever, with_created, teardown)
{
    atomic_store(&c->backend.visits, 1);
    context_destroy_begins(&end, the_context);
    assert_int_equal(num_turns, CONTEXT_AWAIT_TURNS);
    atomic_store(&c->backend.visits, 0);
    end_context();
}

TEST_WITH(a_destruction_that_fails_lets_visits_in, with_created, teardown)
{
    context_destroy_begins(&end, the_context);
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_BEGUN);
    assert_false(judge_as(&end, false));
    assert_false(atomic_load(&c->hidden));
    context_end_over(&end);
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_NONE);
    assert_ptr_equal(context_find(the_context), c);
}

/* The same while the record is being made, and the record is made before or after the driver's
 * answer. */
TEST(a_destruction_of_a_record_being_made_that_fails_lets_visits_in)
{
    for (int made_first = 0; made_first < 2; made_first++) {
        start_record(false);
        context_destroy_begins(&end, the_context);
        if (made_first)
            assert_false(context_made(c, the_context));
        assert_false(judge_as(&end, false));
        context_end_over(&end);
        if (!made_first)
            assert_true(context_made(c, the_context));
        assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_NONE);
        assert_ptr_equal(context_find(the_context), c);
        end_record();
    }
}

/* Two threads destroy one context. The first one's call fails, while the other's is under way. */
TEST_WITH(a_destruction_that_fails_lets_no_visit_into_another, with_created, teardown)
{
    struct context_end first, second;
    context_destroy_begins(&first, the_context);
    context_destroy_begins(&second, the_context);
    assert_false(judge_as(&first, false));
    assert_true(atomic_load(&c->hidden));
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_BEGUN);
    assert_false(judge_as(&second, false));
    assert_false(atomic_load(&c->hidden));
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_NONE);
}

/* device_renew (shim/driver/device.c) begins anew only what is over. */
TEST_WITH(a_record_without_a_context_lets_no_visit_in, with_created, teardown)
{
    destroy();
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_OVER);
    is_alive = true;
    life = 2;
    assert_true(context_reuse(c, the_context));
    context_destroy_begins(&end, the_context);
    context_retire(c); /* the record does not suit */
    assert_false(judge_as(&end, false));
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_OVER);
}

/* Note [Ends under way]. */

/* The first record of the context is made while a call may end it. */
static void make_late(struct context_end *e)
{
    start_record(true);
    assert_int_equal(atomic_load(&c->backend.enders), 1);
    assert_false(context_made(c, the_context)); /* requests go to the driver */
    assert_true(atomic_load(&c->backend.base.gone));
    assert_true(atomic_load(&c->hidden));
    context_end_returned(e);
    assert_true(context_end_holds(e, c));
}

TEST_WITH(a_record_made_beside_a_release_is_found_after_it, NULL, teardown)
{
    context_release_begins(&end, 0, false);
    make_late(&end);
    judge(&end);
    context_end_over(&end);
    assert_int_equal(atomic_load(&c->backend.enders), 0);
    assert_int_equal(device_ends_of[c->index], 0);
    assert_false(atomic_load(&c->backend.base.gone));
    assert_ptr_equal(context_find(the_context), c);
}

TEST_WITH(a_record_made_beside_the_last_release_ends_with_it, NULL, teardown)
{
    context_release_begins(&end, 0, false);
    make_late(&end);
    end_context();
    context_end_over(&end);
    assert_int_equal(num_abandoned, 1);
    assert_int_equal(atomic_load(&c->backend.enders), 0);
}

/* Also where the ender has no id to compare. If the handle is that of a new life, the record goes
 * on with that. */
TEST(a_record_made_beside_a_destruction_ends_with_it)
{
    static const unsigned long long lives[] = {1, 0, 7};
    for (int i = 0; i < 3; i++) {
        is_alive = true;
        life = lives[i];
        context_destroy_begins(&end, the_context);
        assert_int_equal(end.life, lives[i]);
        start_record(false);
        assert_int_equal(c->destroyers, 1);
        assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_BEGUN);
        assert_false(context_made(c, the_context));
        judge(&end);
        context_end_over(&end);
        assert_int_equal(c->destroyers, 0);
        assert_int_equal(num_abandoned, lives[i] != 7);
        end_record();
    }
}

TEST_WITH(a_record_made_after_the_drivers_answer_is_not_held, NULL, teardown)
{
    context_release_begins(&end, 0, false);
    context_end_returned(&end);
    make_record(true);
    context_end_over(&end);
    assert_int_equal(atomic_load(&c->backend.enders), 0);
}

/* So many that a call has no place among those under way. It ends as if nothing were made. */
TEST_WITH(more_ends_than_have_room_are_counted_where_there_was_a_record, with_primary, teardown)
{
    static struct context_end many[300];
    for (int i = 0; i < 300; i++)
        context_release_begins(&many[i], 0, false);
    assert_int_equal(atomic_load(&c->backend.enders), 300);
    for (int i = 0; i < 300; i++) {
        judge(&many[i]);
        context_end_over(&many[i]);
    }
    assert_int_equal(atomic_load(&c->backend.enders), 0);
    assert_ptr_equal(context_find(the_context), c);
}

/* The driver refuses to destroy a primary context. A reset or release meanwhile is counted. */
TEST_WITH(a_refused_destruction_lets_no_free_into_a_release, with_primary, teardown)
{
    struct context_end refused;
    context_destroy_begins(&refused, the_context);
    context_release_begins(&end, 0, false);
    assert_int_equal(atomic_load(&c->backend.enders), 2);
    assert_false(judge_as(&refused, false));
    assert_int_equal(atomic_load(&c->backend.enders), 1);
    assert_true(atomic_load(&c->hidden));
    end_context();
    assert_int_equal(num_abandoned, 1);
}

/* The release is over first, and asks nothing. The last of the destroyers asks. */
TEST(the_last_refused_destruction_asks_for_a_release_that_could_not)
{
    for (int is_last_release = 0; is_last_release < 2; is_last_release++) {
        struct context_end refused[2];
        make_record(true);
        for (int i = 0; i < 2; i++)
            context_destroy_begins(&refused[i], the_context);
        context_release_begins(&end, 0, false);
        life += is_last_release; /* the next life has begun */
        judge(&end);
        assert_int_equal(num_abandoned, 0);
        assert_false(judge_as(&refused[0], false));
        assert_int_equal(judge_as(&refused[1], false), is_last_release);
        assert_int_equal(num_abandoned, is_last_release);
        assert_int_equal(atomic_load(&c->backend.enders), 0);
        assert_false(c->doubted);
        for (int i = 0; i < 2; i++)
            context_end_over(&refused[i]);
        context_end_over(&end);
        end_record();
    }
}

/* That of a reset is known without a question. */
TEST_WITH(a_reset_ends_a_record_that_others_try_to_destroy, with_primary, teardown)
{
    struct context_end refused;
    context_destroy_begins(&refused, the_context);
    context_release_begins(&end, 0, true);
    end_context();
    assert_int_equal(num_abandoned, 1);
    assert_false(judge_as(&refused, false));
    assert_int_equal(c->state, CONTEXT_ENDED);
    assert_int_equal(atomic_load(&c->backend.destruction), DESTRUCTION_OVER);
}

PLAY_TESTS
