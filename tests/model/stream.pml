/* SPDX-License-Identifier: BSD-2-Clause
 *
 * When is the order of one stream enough? The protocol of shim/context/stream_watch.c, with its
 * other half in pool/single_stream.c and the quick ways of pool/magazine.c. Threads submit work to
 * two streams, and free and allocate one block of memory. They propose a stream, make it the single
 * one, and leave it. A load or store of what is shared without a lock is one step. A section under
 * the pool's lock is in steps where others look on.
 *
 * Asserted: work that touches the block runs behind all that touched it in its earlier lives
 * (HAZARD). The order of its stream does that, or a fence that is known done, or one that all later
 * work runs behind. Leaving always finds a fence for what stream order alone ordered (LOST). No
 * state is stuck.
 *
 * Scenarios, by what is defined. RUNS and LIVES: how long it lasts. RUNNER_STRAYS: either thread
 * uses both streams. OTHERS_FREE: there is always memory that waits for a fence. START_SINGLE: the
 * first pool, where the first stream used is the single one. CAPTURES, FORGETS and GIVES_UP: a
 * third thread does that once. FORGETS is a destroyed stream whose handle comes back as another
 * stream. TAKES_OVER: a thread that comes while another one leaves the stream may do so beside it,
 * and may record anew rather than wait for a record. Each WITHOUT_ or WITH_ takes one look away, or
 * does it in another order, and has to be noticed (meson.build).
 */
#ifndef RUNS
#define RUNS 2
#endif
#ifndef LIVES
#define LIVES 2
#endif
#define THREADS 2
#define STREAMS 3 /* the third has the first one's handle, later */
#define EPOCHS 9
#define IDLE 14
#define ANY 13
#define NONE 15
#define ALL 255

#define LIVE 0
#define FREEING 1
#define READY 2   /* in the bins */
#define PENDING 3
#define MAGAZINE 4

/* The driver: fences, one for each epoch, not known done. A fence is a set of streams, as bits: it
   covers all work of this, or of earlier lives of the block on that stream. */
bit recorded[EPOCHS];
byte covers[EPOCHS], covers_before[EPOCHS];

/* The program: one block. Its users are on their way to submit work on it. */
byte block_state = LIVE, block_epoch, block_owner, on_way[STREAMS];
/* Streams that have work on it, of any life, behind which later work is not known to run. */
byte used, used_before;
byte current; /* the stream that has the first handle: 0 or 2 */

/* pool/fence.c, pool/single_stream.c */
#define SINGLE 0
#define LEAVING 1
#define MULTI 2
bit pool_lock, unsealed, lost, watches = 1;
byte open_epoch = 1, complete_epoch, ordered_epoch, sealing, pool_mode, ready, pool_single_stream;
bit magazine_lock[THREADS];
bit mode_ends;
#ifdef TAKES_OVER
#define MAY_LEAVE (pool_mode != MULTI)
#else
#define MAY_LEAVE (pool_mode == SINGLE)
#endif
#ifdef WITHOUT_ENDS
#define STILL_LEAVING true
#else
#define STILL_LEAVING (ends == mode_ends)
#endif

/* shim/context/stream_watch.c */
byte record[THREADS], candidate = NONE, candidate_mark;
bit breached, stepping, given_up, destroying;
byte captures, open_count;

#define SAFE_EPOCH (complete_epoch > ordered_epoch -> complete_epoch : ordered_epoch)
#define NAME(s) ((s) == 2 -> 0 : (s))

inline lock_pool() { atomic { !pool_lock -> pool_lock = 1 } }
inline unlock_pool() { pool_lock = 0 }

inline publish()
{
    if
    :: pool_mode == SINGLE -> ready = ALL
    :: else -> ready = SAFE_EPOCH
    fi
}

/* The fence of that epoch is done, or ordered: with it every earlier one. */
inline secure(e)
{
    used = used & (7 ^ covers[e]);
    used_before = used_before & (7 ^ covers_before[e])
}

inline retire()
{
    if
    :: block_state == PENDING && block_epoch <= ready -> block_state = READY
    :: else
    fi
}

/* With the pool's lock; dropped for the record. */
inline seal()
{
    if
#ifdef OTHERS_FREE
    :: atomic { unsealed && open_epoch < EPOCHS - 1 -> e = open_epoch };
#else
    :: atomic { unsealed && open_epoch < EPOCHS - 1 -> e = open_epoch; unsealed = 0 };
#endif
        atomic { open_epoch = e + 1; sealing++; unlock_pool() };
        atomic {
            refused = (open_count > 0);
            if
            :: !refused -> covers[e] = used; covers_before[e] = used_before
            :: else
            fi
        };
        atomic {
            lock_pool();
            sealing--;
            unsealed = unsealed || refused;
            recorded[e] = !refused;
            e = 0;
            refused = 0
        }
    :: else
    fi
}

/* A fence is found to be done, or not: the GPU decides. */
inline poll()
{
    if
    :: skip
    :: atomic {
        e = open_epoch - 1;
        do
        :: e > complete_epoch && !recorded[e] -> e--
        :: e > complete_epoch && recorded[e] -> complete_epoch = e; secure(e); publish(); retire()
        :: e <= complete_epoch -> break
        od;
        do
        :: e > 0 -> recorded[e] = 0; covers[e] = 0; covers_before[e] = 0; e--
        :: else -> break
        od
    }
    fi
}

/* All later work behind a fence of at least this epoch, if there is one. A capture forbids it. */
inline order(epoch)
{
    atomic {
        e = epoch;
        do
        :: e < EPOCHS && !recorded[e] -> e++
        :: e < EPOCHS && recorded[e] && open_count == 0 ->
            ordered_epoch = (e > ordered_epoch -> e : ordered_epoch);
            secure(e);
            break
        :: e < EPOCHS && recorded[e] && open_count > 0 -> break
        :: e == EPOCHS -> break
        od;
        e = 0
    }
}

inline pass_all()
{
    i = 0;
    do
    :: i < THREADS -> atomic { !magazine_lock[i] -> i++ }
    :: else -> break
    od;
    i = 0
}

/* single_stream_leave, with the pool's lock taken here; for good if the thread quits. */
inline leave()
{
    if
    :: atomic { !pool_lock && pool_mode == LEAVING -> skip };
        atomic { pool_mode != LEAVING -> watches = watches && !quits }
    :: atomic { !pool_lock && pool_mode == MULTI -> watches = watches && !quits }
    :: atomic { !pool_lock && MAY_LEAVE ->
            pool_lock = 1; pool_mode = LEAVING; ends = mode_ends; publish() };
        pass_all();
        last = (unsealed -> open_epoch : open_epoch - 1);
        seal();
        do
        :: atomic { sealing > 0 -> unlock_pool() };
            atomic { sealing == 0 && !pool_lock -> pool_lock = 1 }
#ifdef TAKES_OVER
        :: sealing > 0 && open_epoch < EPOCHS - 1 ->
#ifndef WITHOUT_ANEW
            unsealed = 1;
            seal();
#endif
            break
#endif
        :: else -> break
        od;
#ifndef WITHOUT_FENCE
        atomic {
            if
            :: last > complete_epoch -> order(last)
            :: else
            fi;
            assert(!STILL_LEAVING || SAFE_EPOCH >= last || open_epoch == EPOCHS - 1) /* LOST */
        };
#endif
        atomic {
            last = 0;
            if
            :: STILL_LEAVING ->
                pool_mode = MULTI; mode_ends = 1 - mode_ends; ends = mode_ends; publish()
            :: else
            fi
        };
        atomic {
            if
            :: STILL_LEAVING -> pool_single_stream = NONE
            :: else
            fi;
            watches = watches && !quits;
            ends = 0;
            unlock_pool()
        }
    fi
}

/* pool_enter_single_stream. */
inline enter(name)
{
    lock_pool();
    if
#ifdef WITHOUT_MARK
    :: pool_mode == MULTI && watches ->
#else
    :: pool_mode == MULTI && watches && complete_epoch >= mark ->
#endif
#ifdef WITH_LATE_LOOK
        pool_single_stream = name;
        entered = 1;
#else
        pool_single_stream = name;
#ifdef WITHOUT_LOOK_AT_BREACH
        entered = 1;
#else
        entered = !breached;
#endif
#endif
        atomic {
            if
            :: entered -> pool_mode = SINGLE; ready = ALL; retire()
            :: else -> pool_single_stream = NONE
            fi;
            unlock_pool()
        }
    :: else -> unlock_pool()
    fi
}

inline propose(name)
{
    breached = 0;
    candidate = name;
    i = 0;
#ifndef WITHOUT_SCAN
    do
    :: i < THREADS && (record[i] == IDLE || record[i] == name) -> i++
    :: else -> break
    od;
#else
    i = THREADS;
#endif
    if
    :: atomic { i < THREADS -> candidate = NONE }
    :: atomic { else -> candidate_mark = open_epoch }
    fi
}

inline step(name)
{
    mark = candidate_mark;
    if
    :: atomic { candidate == name -> complete = !breached };
        atomic {
            !pool_lock;
            poll();
#ifndef WITHOUT_MARK
            complete = complete && complete_epoch >= mark
#endif
        }
    :: else
    fi;
    if
    :: atomic { !stepping -> stepping = 1 };
        if
        :: pool_single_stream == NONE ->
            if
            :: captures == 0 && !given_up ->
                if
                :: candidate != name -> propose(name)
                :: else ->
                    if
                    :: breached -> propose(name)
                    :: !breached && complete && mark == candidate_mark -> enter(name)
                    :: !breached && !(complete && mark == candidate_mark)
                    fi
                fi
            :: else
            fi
        :: else
        fi;
        atomic { stepping = 0; i = 0; complete = 0; mark = 0 }
#ifdef WITH_LATE_LOOK
        if
        :: entered && breached -> leave()
        :: else
        fi
#endif
    :: atomic { stepping -> complete = 0; mark = 0 }
    fi;
    entered = 0
}

inline follow(name)
{
    seen = candidate;
    if
    :: atomic { seen != NONE && seen != name -> breached = 1 };
#ifndef WITHOUT_SECOND_LOOK
        seen = pool_single_stream;
        if
        :: seen != NONE && seen != name -> leave()
        :: else
        fi
#endif
    :: else
    fi;
    /* A run of any length. */
    if
    :: atomic { skip -> seen = 0 }; step(name)
    :: seen = 0
    fi
}

/* submission_begin, the driver's call, submission_end. With the last step the stream may be
   destroyed: a step of its own for that would only add states. */
inline submit(s, uses)
{
    if
    :: watches ->
#ifndef WITHOUT_RECORD
        record[self] = NAME(s);
#endif
        seen = pool_single_stream;
        if
        :: seen == ANY ->
            atomic {
                if
                :: pool_single_stream == ANY -> pool_single_stream = NAME(s)
                :: else
                fi;
                seen = pool_single_stream
            }
        :: else
        fi;
        if
        :: seen != NAME(s) ->
            if
            :: seen != NONE -> leave()
            :: else
            fi;
            follow(NAME(s))
        :: else -> seen = 0
        fi
    :: else
    fi;
    if
    :: atomic { unsealed && !pool_lock -> pool_lock = 1 };
        seal();
        unlock_pool()
    :: !unsealed
    fi;
#ifdef WITH_EARLY_DONE
    record[self] = IDLE;
#endif
    d_step {
        if
        :: uses ->
            assert(!(used_before & (7 ^ (1 << s)))); /* HAZARD */
            used = used | (1 << s);
            k = 0;
            do
            :: k < EPOCHS -> covers[k] = covers[k] & (7 ^ (1 << s)); k++
            :: else -> break
            od;
            k = 0
        :: else
        fi
    };
    atomic { record[self] = IDLE; on_way[s]--; s = 0 }
}

inline settle(epoch)
{
    block_state = (epoch <= ready -> READY : PENDING);
    block_epoch = epoch
}

/* The block is the program's again. */
inline hand_out()
{
    d_step {
        k = 0;
        do
        :: k < EPOCHS ->
            covers_before[k] = (covers_before[k] & (7 ^ used)) | (covers[k] & used);
            covers[k] = 0;
            k++
        :: else -> break
        od;
        k = 0;
        used_before = used_before | used;
        used = 0;
        block_epoch = 0;
        block_owner = 0;
        block_state = LIVE
    }
}

inline free_block()
{
    if
    :: ready == ALL ->
        atomic { !magazine_lock[self] -> magazine_lock[self] = 1 };
        last = open_epoch;
        unsealed = 1;
        atomic { block_epoch = last; block_owner = self; block_state = MAGAZINE;
            last = 0; magazine_lock[self] = 0 }
    :: else -> atomic { !pool_lock -> unsealed = 1; settle(open_epoch) }
    fi
}

inline allocate()
{
    if
    :: block_state == MAGAZINE && block_owner == self ->
        atomic { !magazine_lock[self] -> magazine_lock[self] = 1 };
        seen = (block_state == MAGAZINE && block_epoch <= ready);
        atomic {
            if
            :: seen -> hand_out()
            :: else
            fi;
            magazine_lock[self] = 0;
            seen = 0
        }
    :: else ->
        lock_pool();
        if
        :: block_state == PENDING ->
            seal();
            poll();
            if
            :: atomic {
                block_state == PENDING && block_epoch < open_epoch ->
                order(block_epoch);
                publish();
                retire()
            }
            :: skip
            fi
        :: atomic {
            /* another thread's, or not ready */
            block_state == MAGAZINE && !magazine_lock[block_owner] ->
            settle(block_epoch)
        }
        :: block_state == MAGAZINE && magazine_lock[block_owner]
        :: else
        fi;
        atomic {
            if
            :: block_state == READY -> hand_out()
            :: else
            fi;
            unlock_pool()
        }
    fi
}

inline capture()
{
    captures++;
#ifndef WITHOUT_STEP_WAIT
    !stepping;
#endif
    leave();
    open_count++;
    skip;
#ifdef WITH_EARLY_CLOSE
    captures--;
    open_count--
#else
    open_count--;
    captures--
#endif
}

/* stream_watch_forget, then the driver's cuStreamDestroy, then a new stream with that handle. */
inline forget()
{
#ifndef WITHOUT_FORGET
    if
    :: candidate == 0 -> breached = 1
    :: else
    fi;
    if
    :: pool_single_stream == 0 -> leave()
    :: else
    fi;
#endif
    atomic { current = 2; destroying = 0 }
}

inline give_up()
{
    given_up = 1;
    quits = 1;
    leave();
    assert(pool_mode == MULTI && !watches)
}

/* The first stream, whichever has its handle. It lives while work is on its way to it. */
inline begin_first()
{
    !destroying -> s = current; on_way[s]++
}

/* Work that has nothing to do with the block. */
proctype Runner(byte self)
{
    byte e, i, k, last, mark, seen, s;
    bit complete, ends, entered, quits, refused;
    byte left = RUNS;
    do
    :: atomic {
            left > 0 -> left--;
            if
            :: begin_first()
#ifdef RUNNER_STRAYS
            :: s = 1; on_way[1]++
#endif
            fi
        };
        submit(s, false)
    :: left == 0 -> break
    od
}

/* Work on the block, on any stream; then it is freed, and allocated again if it can be had. */
proctype Worker(byte self)
{
    byte e, i, k, last, mark, seen, s;
    bit complete, ends, entered, quits, refused;
    byte left = LIVES;
    do
    :: atomic {
            left > 0 && block_state == LIVE -> left--;
            if
            :: begin_first()
            :: s = 1; on_way[1]++
            fi
        };
        submit(s, true);
        if
        :: left > 0 ->
            block_state = FREEING;
            free_block();
            allocate()
        :: else
        fi
    :: left == 0 || block_state != LIVE -> break
    od
}

/* What a third thread does once. */
proctype Other(byte self)
{
    byte e, i, k, last;
    bit ends, quits, refused;
#if defined(CAPTURES)
    capture()
#elif defined(FORGETS)
    atomic { on_way[0] == 0 -> destroying = 1 };
    forget()
#elif defined(GIVES_UP)
    give_up()
#endif
}

init {
    atomic {
#ifdef START_SINGLE
        pool_mode = SINGLE;
        pool_single_stream = ANY;
        ready = ALL;
        candidate = 0; /* of an earlier pool */
#ifndef WITH_OLD_CANDIDATE
        breached = 1;
#endif
#else
        /* Other blocks were freed before: a fence is there to be had. */
        pool_mode = MULTI;
        pool_single_stream = NONE;
        unsealed = 1;
#endif
        record[0] = IDLE;
        record[1] = IDLE;
        run Runner(0);
        run Worker(1);
#if defined(CAPTURES) || defined(FORGETS) || defined(GIVES_UP)
        run Other(2)
#endif
    }
}
