/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See hasher.h; the numbers below are those of its steps.
 */
#include "shim/park/hasher.h"

#include "shim/driver/call_scope.h"
#include "shim/park/quiet.h"
#include "shim/process/fork_gate.h"
#include "shim/process/log.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* By the context's index. */
static struct hasher {
    CUcontext ctx;
    unsigned long long life;
    bool tries;         /* to have what follows */
    CUmodule module;    /* NULL: not loaded */
    CUfunction kernel;  /* NULL: the context does not hash */
    CUdeviceptr memory; /* the key, then hashes */
    uint64_t key;       /* the number of the key that is there; 0: none yet */
} hashers[CONTEXTS_MAX];

/* A key for contexts that have none. */
static struct {
    char *bytes; /* NULL: there is none */
    uint64_t number;
    struct hash of_itself; /* of its first page */
} fresh;

static bool fill_randomly(char *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        long got = syscall(SYS_getrandom, bytes + done, size - done, 0);

        if (got < 0 && errno != EINTR)
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

static bool make_hash_key(void)
{
    if (fresh.bytes)
        return true;
    void *p =
        mmap(NULL, HASH_KEY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    madvise(p, HASH_KEY_BYTES, MADV_DONTFORK);
    madvise(p, HASH_KEY_BYTES, MADV_DONTDUMP);
    if (!fill_randomly(p, HASH_KEY_BYTES)) {
        munmap(p, HASH_KEY_BYTES);
        return false;
    }
    fresh.bytes = p;
    fresh.number++;
    fresh.of_itself = hash_page(p, p);
    return true;
}

void hasher_finish(void)
{
    if (fresh.bytes)
        munmap(fresh.bytes, HASH_KEY_BYTES);
    fresh.bytes = NULL;
}

/* In the context. What an earlier try has loaded is there. */
static CUresult load(struct hasher *h)
{
    CUmodule module;
    CUfunction kernel;
    CUresult rc = CUDA_SUCCESS;

    if (!h->module && (rc = real.cuModuleLoadData(&module, hash_ptx)) == CUDA_SUCCESS)
        h->module = module;
    if (rc == CUDA_SUCCESS)
        rc = real.cuModuleGetFunction(&kernel, h->module, hash_kernel);
    if (rc == CUDA_SUCCESS)
        rc = real.cuMemAlloc_v2(&h->memory, HASHER_BYTES);
    h->kernel = rc == CUDA_SUCCESS ? kernel : NULL;
    return rc;
}

void hasher_load(struct context *c)
{
    struct hasher *h = &hashers[c->index];
    struct call_scope scope;
    CUcontext ctx = atomic_load(&c->ctx);
    unsigned long long life = context_life(ctx);

    if (!life)
        return;
    if (h->ctx != ctx || h->life != life) /* step 2 */
        *h = (struct hasher){.ctx = ctx, .life = life, .tries = true};
    if (h->tries && !quiet_look()) { /* step 1 */
        fork_gate_enter();
        if (call_scope_enter(&scope, ctx)) {
            CUresult rc = load(h);
            h->tries = rc == CUDA_ERROR_OUT_OF_MEMORY; /* the next park goes on with it */
            if (rc != CUDA_SUCCESS)
                log_once(LOG_LEVEL_WARN,
                         "GPUCACHE_PARK=retain: the driver loads no kernel (error %d), so a park "
                         "copies all memory",
                         (int)rc);
            call_scope_end(&scope);
        }
        fork_gate_leave();
    }
    if (h->kernel && !h->key && !make_hash_key())
        h->kernel = NULL;
}

static CUresult launch(const struct hasher *h, uint64_t addr, uint64_t num_pages, struct hash *out)
{
    CUdeviceptr hashes = h->memory + HASH_KEY_BYTES, key = h->memory;
    CUresult rc = atomic_load(&real_cuLaunchKernel)(
        h->kernel, (unsigned)num_pages, 1, 1, HASH_THREADS, 1, 1, 0, NULL,
        (void *[]){&addr, &num_pages, &key, &hashes}, NULL);

    if (rc == CUDA_SUCCESS)
        rc = atomic_load(&real_cuMemcpyDtoHAsync_v2)(out, hashes, num_pages * sizeof *out, NULL);
    CUresult end = real.cuStreamSynchronize(NULL);
    return rc == CUDA_SUCCESS ? end : rc;
}

/* Steps 3 and 4. In the context. */
static bool take_key(struct hasher *h)
{
    struct hash of_itself;

    if (h->key)
        return true;
    if (!fresh.bytes)
        return false;
    CUresult rc =
        atomic_load(&real_cuMemcpyHtoDAsync_v2)(h->memory, fresh.bytes, HASH_KEY_BYTES, NULL);
    if (rc == CUDA_SUCCESS)
        rc = launch(h, h->memory, 1, &of_itself);
    if (rc != CUDA_SUCCESS)
        return false;
    if (hash_is_equal(&of_itself, &fresh.of_itself))
        h->key = fresh.number;
    else
        h->kernel = NULL;
    return h->key;
}

uint64_t hasher_run(struct context *c, uint64_t addr, size_t num_pages, struct hash *out)
{
    struct hasher *h = &hashers[c->index];
    struct call_scope scope;

    if (!h->kernel || h->ctx != atomic_load(&c->ctx) || h->life != context_life(h->ctx) ||
        !call_scope_enter(&scope, h->ctx))
        return 0;
    bool done = take_key(h) && launch(h, addr, num_pages, out) == CUDA_SUCCESS;
    call_scope_end(&scope);
    return done ? h->key : 0;
}
