/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Whether the library sees all work that a program gives to the GPU. The driver loads this file by
 * CUDA_INJECTION64_PATH. CUPTI records each kernel, copy and memset, and names the call that caused
 * it. The preloaded library is built so that it counts: part_park.py adds gpucache_inside() to a
 * copy of its sources, which says whether this thread is in a wrapper's call of the driver, and
 * gpucache_passed(), which counts these calls.
 *
 * The question: does each kernel, copy and memset come from a call that went through a wrapper?
 * What it means: what did not ("excess") comes by a route that a park cannot close. It would meet
 * no memory (error 700) if it used memory of the pool. The function named, or "no call", is the
 * route. Work that only fills memory of the driver's own, such as a module's constants, is
 * harmless.
 *
 * INJECTED_FILE.PID gets, for each segment of the process, the lines
 *   segment NAME
 *   KIND RECORDED BY_WRAPPERS             of kernels, copies, memsets
 *   excess KIND COUNT FUNCTION
 *   calls COUNT                           those through wrappers, as CUPTI saw them
 *   dropped COUNT                         records that CUPTI lost
 * and at the end `passed COUNT`, the calls through wrappers as the library counts them. Without
 * CUPTI only that, and `cupti CODE`.
 * A program begins a segment by park_work_segment(name), which waits for nothing but CUPTI.
 */
#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int InitializeInjection(void);
EXPORT void park_work_segment(const char *name);

/* --- calls by correlation id ----------------------------------------------------------------- */

/* What is known of a call. A runtime call has the function of a driver call inside it. */
struct call {
    atomic_ushort driver, runtime; /* callback ids; 0: none */
    atomic_bool is_seen;
};

/* Correlation ids count up from 1; their calls are in blocks made when needed. */
enum { BLOCK_IDS = 1 << 16, BLOCKS = 1 << 12 };
static _Atomic(struct call *) blocks[BLOCKS];

static struct call *call_of(uint32_t id)
{
    _Atomic(struct call *) *at = &blocks[id / BLOCK_IDS % BLOCKS];
    struct call *block = *at, *none = NULL;

    if (!block) {
        block = calloc(BLOCK_IDS, sizeof *block);
        if (!block)
            abort();
        if (!atomic_compare_exchange_strong(at, &none, block)) {
            free(block);
            block = none;
        }
    }
    return &block[id % BLOCK_IDS];
}

static int (*is_inside)(void);
static __thread uint32_t runtime_id; /* the runtime call that this thread is in */
static atomic_ulong num_seen;

static void on_driver_call(uint32_t id, CUpti_CallbackId which)
{
    bool is_seen = is_inside && is_inside();
    uint32_t ids[] = {id, runtime_id};

    num_seen += is_seen;
    for (int i = 0; i < 2; i++) {
        struct call *c = call_of(ids[i]);

        if (ids[i] == 0 || (ids[i] == runtime_id && c->is_seen))
            continue;
        c->driver = (unsigned short)which;
        c->is_seen = is_seen;
    }
}

static void CUPTIAPI on_call(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId which,
                             const void *data)
{
    const CUpti_CallbackData *call = data;

    if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) {
        if (call->callbackSite == CUPTI_API_ENTER)
            call_of(call->correlationId)->runtime = (unsigned short)which;
        runtime_id = call->callbackSite == CUPTI_API_ENTER ? call->correlationId : 0;
    } else if (domain == CUPTI_CB_DOMAIN_DRIVER_API && call->callbackSite == CUPTI_API_ENTER) {
        on_driver_call(call->correlationId, which);
    }
}

/* --- what the GPU did ------------------------------------------------------------------------ */

enum { KERNELS, COPIES, MEMSETS, KINDS };
static const char *const kind_names[KINDS] = {"kernels", "copies", "memsets"};

/* Excess by kind and function, a few. */
enum { EXCESS_MAX = 64, NAME_BYTES = 96 };
static struct {
    unsigned long recorded[KINDS], seen[KINDS];
    struct excess {
        int kind;
        unsigned long count;
        char name[NAME_BYTES];
    } excess[EXCESS_MAX];
    int num_excess;
} found;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards found, file */
static FILE *file;

static void name_of(const struct call *c, char *name)
{
    const char *driver = NULL, *runtime = NULL;

    if (c->driver)
        cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, c->driver, &driver);
    if (c->runtime)
        cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, c->runtime, &runtime);
    if (driver || runtime)
        snprintf(name, NAME_BYTES, "%s%s%s", driver ? driver : "", driver && runtime ? "<-" : "",
                 runtime ? runtime : "");
    else
        snprintf(name, NAME_BYTES, "no-call");
}

static void note_excess(int kind, const struct call *c)
{
    char name[NAME_BYTES];
    int i = 0;

    name_of(c, name);
    while (i < found.num_excess &&
           (found.excess[i].kind != kind || strcmp(found.excess[i].name, name)))
        i++;
    if (i == EXCESS_MAX)
        i = EXCESS_MAX - 1;
    if (i == found.num_excess) {
        found.excess[i] = (struct excess){.kind = kind};
        memcpy(found.excess[i].name, name, NAME_BYTES);
        found.num_excess++;
    }
    found.excess[i].count++;
}

static void note(int kind, uint32_t id)
{
    const struct call *c = call_of(id);

    found.recorded[kind]++;
    if (id && c->is_seen)
        found.seen[kind]++;
    else
        note_excess(kind, c);
}

/* Newer records of a kind begin as the oldest ones that all headers have. */
static void note_record(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        note(KERNELS, ((const CUpti_ActivityKernel4 *)record)->correlationId);
        break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        note(COPIES, ((const CUpti_ActivityMemcpy3 *)record)->correlationId);
        break;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
        note(COPIES, ((const CUpti_ActivityMemcpyPtoP *)record)->correlationId);
        break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
        note(MEMSETS, ((const CUpti_ActivityMemset *)record)->correlationId);
        break;
    default:
        break;
    }
}

static void CUPTIAPI on_buffer_wanted(uint8_t **buffer, size_t *size_bytes, size_t *most_records)
{
    *size_bytes = 4 << 20;
    *buffer = aligned_alloc(8, *size_bytes);
    *most_records = 0;
}

static void CUPTIAPI on_buffer_full(CUcontext context, uint32_t stream, uint8_t *buffer,
                                    size_t size_bytes, size_t valid_bytes)
{
    CUpti_Activity *record = NULL;

    pthread_mutex_lock(&lock);
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS)
        note_record(record);
    pthread_mutex_unlock(&lock);
    free(buffer);
}

/* --- the file -------------------------------------------------------------------------------- */

static void write_segment(void)
{
    size_t dropped = 0;

    cuptiActivityFlushAll(1);
    cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped);
    pthread_mutex_lock(&lock);
    for (int kind = 0; kind < KINDS && file; kind++)
        fprintf(file, "%s %lu %lu\n", kind_names[kind], found.recorded[kind], found.seen[kind]);
    for (int i = 0; i < found.num_excess && file; i++)
        fprintf(file, "excess %s %lu %s\n", kind_names[found.excess[i].kind], found.excess[i].count,
                found.excess[i].name);
    if (file) {
        fprintf(file, "calls %lu\ndropped %zu\n", (unsigned long)num_seen, dropped);
        fflush(file);
    }
    memset(&found, 0, sizeof found);
    num_seen = 0;
    pthread_mutex_unlock(&lock);
}

static void begin_segment(const char *name)
{
    pthread_mutex_lock(&lock);
    if (file)
        fprintf(file, "segment %s\n", name);
    pthread_mutex_unlock(&lock);
}

void park_work_segment(const char *name)
{
    write_segment();
    begin_segment(name);
}

static void write_passed(void)
{
    unsigned long (*passed)(void);

    *(void **)&passed = dlsym(RTLD_DEFAULT, "gpucache_passed");
    if (file && passed)
        fprintf(file, "passed %lu\n", passed());
    if (file)
        fflush(file);
}

static void end(void)
{
    write_segment();
    write_passed();
}

static void open_file(void)
{
    const char *path = getenv("INJECTED_FILE");
    char name[4096];

    if (!path)
        return;
    snprintf(name, sizeof name, "%s.%d", path, (int)getpid());
    file = fopen(name, "w");
}

int InitializeInjection(void)
{
    static const CUpti_ActivityKind kinds[] = {
        CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};
    static CUpti_SubscriberHandle subscriber;
    CUptiResult rc = cuptiSubscribe(&subscriber, on_call, NULL);

    *(void **)&is_inside = dlsym(RTLD_DEFAULT, "gpucache_inside");
    open_file();
    if (rc == CUPTI_SUCCESS)
        rc = cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API);
    if (rc == CUPTI_SUCCESS)
        rc = cuptiActivityRegisterCallbacks(on_buffer_wanted, on_buffer_full);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && rc == CUPTI_SUCCESS; i++)
        rc = cuptiActivityEnable(kinds[i]);
    if (rc != CUPTI_SUCCESS) {
        if (file)
            fprintf(file, "cupti %d\n", (int)rc);
        atexit(write_passed);
        return 1;
    }
    begin_segment("start");
    atexit(end);
    return 1;
}
