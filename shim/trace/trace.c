/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See trace.h and fast.h. The lock guards the list of spare states.
 */
#include "shim/trace/trace.h"

#include "shim/page/dir.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/process/proc_text.h"
#include "shim/process/program.h"
#include "shim/process/state.h"
#include "shim/trace/fast.h"
#include "shim/trace/file.h"
#include "shim/trace/python_frames.h"
#include "shim/trace/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { STEER_TRIES = 1000, SPARE_TRIES = 20 }; /* of a millisecond */

_Atomic uint32_t trace_now;
enum trace_clock trace_clock;

/* A thread that has no state. Its `next` is its `end`, so each record takes the slow way. */
static struct trace_thread nobody;
__thread struct trace_thread *trace_mine __attribute__((tls_model("initial-exec"))) = &nobody;

__thread const void *trace_asker __attribute__((tls_model("initial-exec")));

static atomic_flag steered = ATOMIC_FLAG_INIT; /* a thread begins, ends or ticks */
static uint32_t num_traces;                    /* whoever has `steered` */
static _Atomic uint64_t lost;
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct trace_thread *spare;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key;
static bool has_key;

/* The whole file as text, cut to the room. Returns its bytes; 0: it cannot be read. */
static size_t read_text(const char *path, char *out, size_t size_bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    out[0] = '\0';
    if (fd < 0)
        return 0;
    if (!kernel_fstat(fd, &st)) {
        for (ssize_t got; n + 1 < size_bytes && (got = read(fd, out + n, size_bytes - 1 - n)) > 0;)
            n += (size_t)got;
        kernel_close_own(fd, &st);
    }
    out[n] = '\0';
    return n;
}

/* The processor's own clock where the kernel trusts it, too. */
static enum trace_clock find_clock(void)
{
#if defined(__x86_64__)
    char name[PROC_TEXT_BYTES];
    proc_text_read("/sys/devices/system/clocksource/clocksource0/current_clocksource", name);
    return strcmp(name, "tsc\n") == 0 ? TRACE_CLOCK_TSC : TRACE_CLOCK_NS;
#elif defined(__aarch64__)
    return TRACE_CLOCK_CNTVCT;
#else
    return TRACE_CLOCK_NS;
#endif
}

void trace_fill_header(struct trace_header *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, TRACE_MAGIC, sizeof h->magic);
    h->version = TRACE_VERSION;
    h->header_bytes = TRACE_HEADER_BYTES;
    h->chunk_bytes = TRACE_CHUNK_BYTES;
    h->byte_order = TRACE_BYTE_ORDER;
    h->clock = trace_clock;
    h->pid = (uint32_t)getpid();
    h->start_unix_ns = clock_unix_ns();
    h->start_ns = h->last_ns = clock_now_ns();
    h->start_ticks = h->last_ticks = trace_ticks();
    page_boot_id(h->boot_id);
    snprintf(h->library_version, sizeof h->library_version, "%s", GPUCACHE_VERSION);
    char path[PROC_TEXT_PATH_BYTES], program[PROGRAM_NAME_MAX];
    snprintf(h->program, sizeof h->program, "%s", program_name(program));
    proc_text_own_path(path, "cmdline");
    size_t n = read_text(path, h->command, sizeof h->command);
    for (size_t i = 0; i + 1 < n; i++)
        if (!h->command[i])
            h->command[i] = ' ';
}

/* --- a thread's state ------------------------------------------------------------------------ */

static void forget_sites(struct trace_thread *t)
{
    memset(t->sites, 0, sizeof t->sites);
    if (t->paths)
        memset(t->paths, 0, TRACE_PATHS_BYTES);
    t->num_sites = 0;
}

static bool lock_spares(void)
{
    return trace_lock(&spare_lock, SPARE_TRIES);
}

static void spare_thread(void *arg)
{
    struct trace_thread *t = arg;
    trace_mine = &nobody;
    if (!lock_spares())
        return;
    t->next_spare = spare;
    spare = t;
    pthread_mutex_unlock(&spare_lock);
}

static void make_thread_key(void)
{
    has_key = pthread_key_create(&thread_key, spare_thread) == 0;
}

/* The calling thread's state. NULL: there is no host memory, or no key. */
static struct trace_thread *make_state(void)
{
    pthread_once(&key_once, make_thread_key);
    if (!has_key)
        return NULL;
    struct trace_thread *t = NULL;
    if (lock_spares()) {
        t = spare;
        if (t)
            spare = t->next_spare;
        pthread_mutex_unlock(&spare_lock);
    }
    if (!t)
        t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->is_new = true;
    atomic_store(&t->busy, false); /* its thread may have ended in a signal handler */
    forget_sites(t);
    if (pthread_setspecific(thread_key, t)) {
        spare_thread(t);
        return NULL;
    }
    trace_mine = t;
    return t;
}

/* --- records --------------------------------------------------------------------------------- */

/* A wide record, with its text, which may have zeroes. There is room. */
static void put(struct trace_thread *t, enum trace_kind kind, const struct trace_event *e,
                uint32_t site, size_t text_bytes)
{
    uint64_t ticks = t->still_ns ? t->ticks : trace_ticks();
    uint64_t step = ticks > t->ticks ? (ticks - t->ticks) >> TRACE_STEP_SHIFT : 0;
    struct trace_wide *w = (struct trace_wide *)t->next;
    if (step > UINT32_MAX) {
        t->ticks = ticks;
        step = 0;
        put(t, TRACE_TIME, &(struct trace_event){.a = ticks}, 0, 0);
        w++;
    }
    w->record.step_at = step | (uint64_t)text_bytes << 32;
    w->a = e->a;
    w->b = e->b;
    if (text_bytes)
        memcpy(w + 1, e->text, text_bytes);
    __atomic_store_n(&w->record.what_who,
                     e->aux | (uint64_t)(kind | TRACE_WIDE) << 24 | (uint64_t)site << 32 |
                         (uint64_t)(uint8_t)e->context << 56,
                     __ATOMIC_RELEASE);
    t->ticks += step << TRACE_STEP_SHIFT;
    t->next += sizeof *w / sizeof *t->next + (text_bytes + sizeof *t->next - 1) / sizeof *t->next;
}

static size_t room_bytes(const struct trace_thread *t)
{
    return (size_t)((const char *)t->end - (const char *)t->next);
}

static void put_thread(struct trace_thread *t)
{
    t->is_new = false;
    char name[17] = "";
    prctl(PR_GET_NAME, name, 0, 0, 0);
    struct trace_event e = {.a = (uint64_t)kernel_gettid(), .text = name};
    put(t, TRACE_THREAD, &e, 0, strlen(name));
}

static void stop_for(const char *why)
{
    uint32_t on = atomic_exchange(&trace_now, 0);
    if (on)
        log_warn("GPUCACHE_TRACE: the trace %s ends here: %s", trace_file_name(), why);
}

/* All zero. NULL: there is none. */
static struct trace_chunk *find_chunk(struct trace_thread *t, uint32_t trace, uint32_t *number)
{
    char why[TRACE_WHY_BYTES];
    if (t->next_chunk)
        return t->next_chunk();
    if (trace_is_ring(trace))
        return trace_ring_chunk(&t->ring, trace);
    struct trace_chunk *chunk = trace_file_chunk(number, why);
    if (!chunk && why[0])
        stop_for(why);
    return chunk;
}

/* The thread goes on in a new chunk. False: there is none. */
static bool add_chunk(struct trace_thread *t, uint32_t trace)
{
    uint32_t number = 0;
    struct trace_chunk *chunk = find_chunk(t, trace, &number);
    if (!chunk)
        return false;
    if (t->chunk && t->is_of_file)
        trace_file_chunk_done(t->chunk);
    t->is_of_file = !t->next_chunk && !trace_is_ring(trace);
    /* A chunk of a ring may outlive those before it. */
    if (t->trace != trace || !t->is_of_file)
        forget_sites(t);
    t->chunk = chunk;
    t->trace = trace;
    t->next = (struct trace_record *)(chunk + 1);
    t->end = (struct trace_record *)((char *)chunk + TRACE_CHUNK_BYTES);
    chunk->number = number;
    if (!t->still_ns)
        t->ticks = trace_ticks();
    chunk->ticks = t->ticks;
    chunk->ns = t->still_ns ? t->still_ns : clock_now_ns();
    t->base_units = 0;
    t->has_base = false;
    t->is_new = true;
    __atomic_store_n(&chunk->magic, TRACE_CHUNK_MAGIC, __ATOMIC_RELEASE);
    return true;
}

/* Addresses up to 2^32 units above the base have narrow records. There is room. */
static void put_base(struct trace_thread *t, uint64_t addr)
{
    uint64_t units = addr >> TRACE_UNIT_SHIFT;
    t->base_units = units > UINT32_MAX / 2 ? units - UINT32_MAX / 2 : 0;
    t->has_base = true;
    put(t, TRACE_BASE, &(struct trace_event){.a = t->base_units}, 0, 0);
}

/* The number of a place that has none yet in this table, which then has it. */
static uint32_t new_number(struct trace_thread *t, struct trace_site *site, uint64_t key)
{
    site->number = ++t->num_sites;
    site->key = key;
    return site->number;
}

/* What STACK says of a frame of Python's. There is room. */
static uint64_t python_word(struct trace_thread *t, uint64_t frame)
{
    struct python_place place;
    uint64_t key = python_frame_key(frame);
    struct trace_site *site = trace_path_of(t, key);
    if (site->key != key) {
        python_frame_read(frame, &place);
        put(t, TRACE_PYTHON_FRAME,
            &(struct trace_event){
                .a = new_number(t, site, key), .b = place.line, .text = place.text},
            0, place.length);
    }
    return site->number | UINT64_C(1) << 63;
}

/* There is room. */
static void put_stack(struct trace_thread *t, const struct trace_stack *s, uint32_t site)
{
    uint64_t words[2 * STACK_FRAMES_MOST];
    unsigned count = s->count + s->num_python - 1;
    memcpy(words, &s->at[1], count * sizeof words[0]);
    for (unsigned i = s->count - 1; i < count; i++)
        words[i] = python_word(t, words[i]);
    put(t, TRACE_STACK, &(struct trace_event){.a = count, .text = (const char *)words}, site,
        count * sizeof words[0]);
}

/* The bytes of the records that make a path known. */
static size_t stack_bytes(const struct trace_stack *s)
{
    return s ? sizeof(struct trace_wide) + (s->count + s->num_python + 1) * sizeof s->at[0] +
                   s->num_python * (sizeof(struct trace_wide) + sizeof(struct python_place))
             : 0;
}

/* The site's number, with records that make it known; 0: there are too many. There is room. */
static uint32_t site_number(struct trace_thread *t, const struct trace_event *e)
{
    const struct trace_stack *stack = e->stack;
    if (stack && !t->paths)
        t->paths = calloc(1, TRACE_PATHS_BYTES);
    if (!t->paths)
        stack = NULL;
    uint64_t key = stack ? stack->key : (uintptr_t)e->caller;
    struct trace_site *site = stack ? trace_path_of(t, key) : trace_site_of(t, key);
    if (!key || site->key == key)
        return key ? site->number : 0;
    if (t->num_sites + STACK_FRAMES_MOST + 1 >= 1u << 24)
        return 0;
    uint32_t number = new_number(t, site, key);
    put(t, TRACE_SITE, &(struct trace_event){.a = (uintptr_t)e->caller}, number, 0);
    if (stack)
        put_stack(t, stack, number);
    return number;
}

static bool is_address(enum trace_kind kind)
{
    return kind == TRACE_ALLOC || kind == TRACE_ALLOC_FAST || kind == TRACE_FREE;
}

/* The thread is not inside a record. */
static bool note(struct trace_thread *t, uint32_t trace, enum trace_kind kind,
                 const struct trace_event *e)
{
    size_t text_bytes = e->text ? strnlen(e->text, TRACE_TEXT_MAX) : 0;
    /* TIME, THREAD with its name, BASE, SITE, the path, and the record itself. */
    size_t most = 5 * sizeof(struct trace_wide) + 2 * sizeof(struct trace_record) + text_bytes +
                  stack_bytes(e->stack);
    if ((t->trace != trace || room_bytes(t) < most) && !add_chunk(t, trace))
        return false;
    if (t->is_new)
        put_thread(t);
    if (is_address(kind) && !t->has_base)
        put_base(t, e->a);
    put(t, kind, e, site_number(t, e), text_bytes);
    return true;
}

void trace_note(enum trace_kind kind, const struct trace_event *event)
{
    uint32_t trace = atomic_load_explicit(&trace_now, memory_order_acquire);
    struct trace_thread *t = trace_mine;
    int saved_errno = errno;
    if (!trace)
        return;
    if (t == &nobody)
        t = make_state();
    if (!t || atomic_exchange_explicit(&t->busy, true, memory_order_relaxed)) {
        trace_count_lost();
        errno = saved_errno;
        return;
    }
    if (!note(t, trace, kind, event))
        trace_count_lost();
    atomic_store_explicit(&t->busy, false, memory_order_relaxed);
    errno = saved_errno;
}

/* --- the trace ------------------------------------------------------------------------------- */

/* The exit may come while the control thread is at it, and waits for it a second at most. The
 * caller forbids cancellation: a thread that ended with `steered` would keep all others out. */
static bool steer(int tries)
{
    while (atomic_flag_test_and_set(&steered)) {
        if (--tries <= 0)
            return false;
        clock_sleep(MS_NS);
    }
    return true;
}

static void tick(void)
{
    struct trace_header *h = trace_file_header();
    if (!h)
        return;
    h->last_ticks = trace_ticks();
    h->last_ns = clock_now_ns();
    h->num_lost = atomic_load(&lost);
}

/* With `steered`. */
static void switch_on(bool is_ring)
{
    atomic_store(&lost, 0);
    do
        num_traces++;
    while (!num_traces || trace_is_ring(num_traces) != is_ring);
    atomic_store_explicit(&trace_now, num_traces, memory_order_release);
    state_detour_begin(STATE_DETOUR_TRACE);
}

static bool begin_trace(const char *path)
{
    static struct trace_header header; /* 2 KiB */
    char why[TRACE_WHY_BYTES];
    trace_clock = find_clock();
    trace_fill_header(&header);
    if (!trace_file_begin(path, &header, why)) {
        log_warn("GPUCACHE_TRACE=%.200s: there is no trace: %s", path, why);
        return false;
    }
    switch_on(false);
    tick();
    return true;
}

bool trace_begin(const char *path)
{
    int cancel = cancel_forbid();
    trace_end();
    bool begun = false;
    if (*path && steer(STEER_TRIES)) {
        begun = begin_trace(path);
        atomic_flag_clear(&steered);
    }
    cancel_allow(cancel);
    return begun;
}

void trace_begin_ring(void)
{
    int cancel = cancel_forbid();
    trace_end();
    if (steer(STEER_TRIES)) {
        trace_clock = find_clock();
        switch_on(true);
        atomic_flag_clear(&steered);
    }
    cancel_allow(cancel);
}

void trace_tick(void)
{
    if (!steer(1))
        return;
    if (trace_is_on() && !trace_is_ring(trace_now))
        tick();
    else if (!trace_is_on())
        state_detour_end(STATE_DETOUR_TRACE);
    atomic_flag_clear(&steered);
}

void trace_count_lost(void)
{
    atomic_fetch_add(&lost, 1);
}

uint64_t trace_num_lost(void)
{
    return atomic_load(&lost);
}

void trace_note_lost(void)
{
    uint64_t missing = trace_num_lost();
    if (missing)
        TRACE(LOST, .a = missing);
}

/* With `steered`. */
static void end(void)
{
    if (!trace_is_ring(trace_now)) /* the header is of an earlier one */
        tick();
    trace_note_lost();
    TRACE(END, .a = 0);
    atomic_store(&trace_now, 0);
    state_detour_end(STATE_DETOUR_TRACE);
}

void trace_end(void)
{
    int cancel = cancel_forbid();
    if (trace_is_on() && steer(STEER_TRIES)) {
        end();
        atomic_flag_clear(&steered);
    }
    cancel_allow(cancel);
}

void trace_leave(void)
{
    atomic_store(&trace_now, 0);
    state_detour_end(STATE_DETOUR_TRACE);
}
