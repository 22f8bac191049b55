/* SPDX-License-Identifier: BSD-2-Clause
 *
 * May this kernel start early? The rule of Note [Early launches] (shim/context/README.md) with what
 * it reads of pool/fence.c. Threads launch kernels with leave to start before those right before
 * them end, and without. They use two streams and a second context. They free memory and allocate
 * it again. A load or store of what is shared without a lock is one step. One block of the pool's
 * is looked at, the others only as frees that are noted. When one stream is enough is the protocol
 * of stream.pml, here in few steps.
 *
 * The driver starts a kernel without that leave when all before it in its stream is complete. A
 * kernel with it may overlap everything back to the last one without it, that one included. Nothing
 * passes a wait of the whole context.
 *
 * Asserted: a kernel that touches the block overlaps none that touched it in an earlier life
 * (HAZARD). A kernel loses its leave only if memory was freed since the last one without it
 * went to the driver (NEEDLESS). This is looked at with ALONE only, because others' frees may be
 * noted late. No state may be stuck.
 *
 * Scenarios. ACTS and BESIDE: how much each of two threads does. REFUSALS: the driver may refuse a
 * launch, and the ring of fences may be full. NESTS: a profiler launches inside a launch. STRAYS:
 * one of the threads uses two streams, and the other one's work is not on the block. ENTERS, with
 * STRAYS: a stream becomes the single one again. MULTI_FIRST, with both: it begins with several.
 * ALONE: one thread, one stream. Each WITHOUT_ or WITH_ takes a step away, or does it in another
 * order, and has to be noticed (meson.build).
 */
#ifndef ACTS
#define ACTS 4
#endif
#ifndef BESIDE
#define BESIDE 2
#endif
#ifdef STRAYS
#define OWNS (self == 0) /* has the block; the other thread does the rest */
#define RUNS (self == 1)
#else
#define OWNS true
#define RUNS true
#endif
#define THREADS 2
#define IDLE 3
#define NONE 2

#define LIVE 0
#define MOVING 1 /* in the middle of a free */
#define FREE 2

/* Work on the block by streams, as bits, behind which later work of other streams is not known to
   run: in this life and in earlier ones. Of that, what an early launch on the stream may overlap.
   */
byte used, used_before, near, near_before;
byte block_state, users;
#ifdef ALONE
bit freed = 1; /* since the last full kernel went to the driver, or none did */
#endif

/* pool/fence.c, pool/single_stream.c */
#define SINGLE 0
#define LEAVING 1
#define MULTI 2
bit pool_lock, unsealed;
byte watch, seals, pool_mode, pool_single_stream;

/* shim/context/stream_watch.c */
byte covered, record[THREADS];

inline secure()
{
    used = 0;
    used_before = 0;
    near = 0;
    near_before = 0
}

/* The block is the program's again. */
inline hand_out()
{
    used_before = used_before | used;
    near_before = near_before | near;
    used = 0;
    near = 0;
    block_state = LIVE
}

inline lock() { atomic { !pool_lock -> pool_lock = 1 } }
inline unlock() { pool_lock = 0 }

/* fence_mark_unsealed, which has looked at the mark: who finds the mark finds it counted. */
inline arm()
{
#ifdef ALONE
    freed = 1;
#endif
    if
    :: !marked ->
#ifndef WITH_LATE_COUNT
        watch++;
#endif
        atomic { marked = unsealed; unsealed = 1 };
        if
#ifdef WITH_LATE_COUNT
        :: atomic { !marked -> watch++ }
#else
        :: atomic { marked -> watch--; marked = 0 }
#endif
        :: atomic { else -> marked = 0 }
        fi
    :: atomic { else -> marked = 0 }
    fi
}

/* fence_seal, with the pool's lock; dropped for the record. The ring of fences may be full. */
inline seal()
{
    if
    :: unsealed ->
        unsealed = 0;
#ifdef WITH_EARLY_UNWATCH
        watch--;
        seals++
#else
        atomic { seals++; unlock() };
        atomic { lock(); watch-- }
#endif
#ifdef REFUSALS
    :: skip
#else
    :: !unsealed
#endif
    fi
}

/* All later work behind a fence. */
inline leave()
{
    if
    :: atomic { pool_mode != SINGLE -> pool_mode != LEAVING }
    :: atomic { pool_mode == SINGLE && !pool_lock -> pool_lock = 1; pool_mode = LEAVING };
        seal();
#ifdef WITH_EARLY_NONE
        pool_single_stream = NONE;
#endif
#ifdef WITHOUT_ORDER
        pool_mode = MULTI;
#else
        atomic { secure(); pool_mode = MULTI };
#endif
        atomic { pool_single_stream = NONE; unlock() }
    fi
}

/* The driver's call. */
inline drive()
{
    d_step {
        if
        :: !early ->
            near = near & ~(1 << s);
#ifdef ALONE
            freed = 0;
#endif
            near_before = near_before & ~(1 << s)
        :: else
        fi;
        if
        :: uses ->
            assert(!(used_before & ~(1 << s)));
            assert(!(near_before & (1 << s))); /* HAZARD */
            used = used | (1 << s);
            near = near | (1 << s)
        :: else
        fi
    }
}

/* A profiler's kernel inside the driver's call for another one; it is refused. */
inline nested()
{
    mark = seals + 1;
    if
    :: mark <= covered -> mark = 0
    :: else
    fi;
#ifndef WITHOUT_END
    mark = 0
#endif
}

/* A launch's first load is one step with the choice of it: fewer states. */
inline begin()
{
#ifdef WITH_EARLY_LOAD
    mark = seals + 1
#else
    looks = watch > 0
#endif
}

/* Its end is one step with the last load, as it only permits others more. */
inline end()
{
    record[self] = IDLE;
    users = users - uses;
    mark = 0;
    seen = 0;
    looks = 0;
    early = 0;
    elsewhere = 0;
    uses = 0;
    s = 0
}

/* submission_begin, the driver's call, submission_end. */
inline launch()
{
#ifdef WITH_EARLY_LOAD
    looks = watch > 0;
#endif
    atomic {
#ifdef ENTERS
        record[self] = s;
#endif
        seen = pool_single_stream
    };
    if
    :: seen != s && seen != NONE -> leave()
    :: else
    fi;
    if
    :: looks ->
        lock();
        seal();
        unlock()
    :: else
    fi;
    seen = pool_single_stream;
    if
    :: seen == s ->
#ifndef WITH_EARLY_LOAD
        mark = seals + 1;
#endif
#ifdef WITH_LATE_LOOK
        looks = watch > 0;
#endif
        if
#if defined(WITHOUT_RULE)
        :: early -> mark = 0
        :: else
#elif defined(WITHOUT_SEALS)
        :: early && !looks -> mark = 0
        :: else -> early = 0
#else
#ifdef WITHOUT_UNSEALED
        :: mark <= covered -> mark = 0
#else
        :: atomic { mark <= covered && !(early && looks) -> mark = 0 }
#endif
        :: atomic { else ->
#ifdef ALONE
                assert(!early || freed); /* NEEDLESS */
#endif
                early = 0
            }
#endif
        fi
    :: atomic { else -> mark = 0 }
    fi;
#ifndef WITHOUT_CONTEXT
    atomic {
        if
        :: elsewhere -> mark = 0
        :: else
        fi
    };
#endif
#ifdef WITH_EARLY_COVER
    if
    :: mark > covered -> covered = mark
    :: mark <= covered
    fi;
#endif
    if
    :: elsewhere
    :: atomic { !elsewhere -> drive() }
#ifdef NESTS
    :: !elsewhere -> drive(); nested()
#endif
#ifdef REFUSALS
    :: !elsewhere -> /* refused */
#ifndef WITHOUT_TAKEN
        mark = 0
#endif
#endif
    fi;
#ifdef WITH_LATE_SEALS
    mark = (mark > 0 -> seals + 1 : 0);
#endif
#ifndef WITHOUT_COVER
    if
    :: mark > covered -> atomic { covered = mark; end() }
    :: atomic { mark <= covered -> end() }
    fi
#else
    atomic { end() }
#endif
}

/* A program frees nothing while a launch on it is on its way. */
proctype Program(byte self, acts)
{
    byte mark, s, seen;
    bit early, elsewhere, looks, marked, uses;
    do
    :: atomic {
            acts > 0 && OWNS && block_state == LIVE ->
            acts--;
            uses = 1;
            users++;
            if
            :: early = 0
            :: early = 1
            fi;
#ifdef STRAYS
            if
            :: s = 0
            :: s = 1
            fi;
#endif
            begin()
        };
        launch()
    :: atomic {
            acts > 0 && RUNS ->
            acts--;
            if
            :: early = 0
            :: early = 1
#ifdef STRAYS
            :: s = 1
#else
            :: elsewhere = 1
#endif
            fi;
            begin()
        };
        launch()
    :: atomic {
            acts > 0 && OWNS && block_state == LIVE && users == 0 ->
            acts--;
            block_state = MOVING;
            marked = unsealed
        };
        arm();
        block_state = FREE
    :: atomic { acts > 0 && RUNS -> acts--; marked = unsealed };
        arm()
    :: atomic {
        acts > 0 && OWNS && block_state == FREE && pool_mode != LEAVING ->
        acts--;
        if
        :: pool_mode == MULTI -> secure()
        :: else
        fi;
        hand_out()
    }
    :: acts == 0 -> break
    od
}

#ifdef ENTERS
/* A stream becomes the single one again when no other is being submitted to and all that was
   submitted to others is complete. Its own work may run on; it counts as complete too: nobody was
   handed memory without that. */
proctype Enterer()
{
    byte s;
    if
    :: s = 0
    :: s = 1
    fi;
    if
    :: atomic {
        pool_single_stream == NONE && !pool_lock && (record[0] == IDLE || record[0] == s) &&
        (record[1] == IDLE || record[1] == s) ->
        secure();
        covered = 0;
        pool_mode = SINGLE;
        pool_single_stream = s
    }
    :: skip
    fi
}
#endif

init {
    atomic {
#ifdef MULTI_FIRST
        pool_mode = MULTI;
        pool_single_stream = NONE;
#endif
        record[0] = IDLE;
        record[1] = IDLE;
        run Program(0, ACTS);
#ifndef ALONE
        run Program(1, BESIDE);
#endif
#ifdef ENTERS
        run Enterer()
#endif
    };
    _nr_pr == 1;
    assert(watch == unsealed)
}
