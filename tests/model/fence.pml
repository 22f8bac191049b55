/* SPDX-License-Identifier: BSD-2-Clause
 *
 * When may freed memory be used again, with several streams? The epochs of pool/fence.c: two
 * threads submit work on a block each, free it without the lock (fence_join_unlocked), and submit
 * more; a third allocates. A load or store that is shared without the pool's lock is one step. A
 * section under the lock is in steps where others look on. The driver is called without the lock.
 * `unsealed` and `late` are one word.
 *
 * Asserted: a block is handed out only when its work is known done, or later work runs behind it
 * (HAZARD). A fence that is waited for captured no work that came after all its frees, because
 * natively nothing would have waited for that (STALL). No free is forgotten: its epoch is closed,
 * or will be (FORGOTTEN). No state may be stuck.
 *
 * CAPTURES: a fourth thread has a capture open for a while, and another, in which no fence can be
 * recorded. SHORT: the driver may have no event for a fence. Each WITHOUT_ or WITH_ takes a step
 * away, or does it in another order, and has to be noticed (meson.build).
 */
#define EPOCHS 9
#define BLOCKS 2

/* Works are bits: 1 and 2 on the blocks, 4 and 8 on nothing of the pool's. */
byte submitted, safe;
/* Works that no free began after, or was under way beside, since their calls began. */
byte needs_free;
byte frees_under_way;
bit recorded[EPOCHS], is_late[EPOCHS];
byte captured[EPOCHS];
bit capture_open;

/* The program's blocks: the epoch of their free, 0: not freed, or handed out again. */
byte freed_in[BLOCKS];
#ifndef CAPTURES
/* The two programs are alike: of each run and its mirror image one is enough, that in which the
   first block is freed first. */
bit one_is_free;
#endif

/* pool/fence.c */
bit pool_lock, unsealed, late, sealing_late;
byte open_epoch = 1, complete_epoch, ordered_epoch, sealing, watch, refusals;

inline lock() { atomic { !pool_lock -> pool_lock = 1 } }
inline unlock() { pool_lock = 0 }

/* A refused record's frees stay in the open epoch. */
inline reopen_epoch()
{
    atomic {
        if
        :: refused && unsealed -> watch--
        :: refused && !unsealed -> unsealed = 1
        :: else
        fi;
#ifndef WITHOUT_LATE_REFUSAL
        late = late || (refused && was_late)
#endif
    };
#ifdef CAPTURES
    refusals = refusals + refused
#endif
}

/* With the lock; dropped for the record. */
inline seal()
{
    if
#ifdef SHORT
    :: unsealed -> /* no event is to be had */
        atomic { sealing++; unlock() };
        atomic {
            !pool_lock -> pool_lock = 1;
            late = late || unsealed;
            sealing--;
            sealing_late = sealing_late && sealing
        }
#endif
    :: unsealed ->
        atomic { sealing++; e = open_epoch; assert(e < EPOCHS - 1) };
#ifdef WITH_EARLY_RECORD
        captured[e] = submitted;
#endif
#ifdef WITH_EARLY_COUNT
        open_epoch = e + 1;
        atomic { was_late = late; late = 0; unsealed = 0; unlock() };
#else
        atomic { was_late = late; late = 0; unsealed = 0 };
        atomic { open_epoch = e + 1; unlock() };
#endif
#ifdef WITH_EARLY_UNWATCH
        watch--;
#endif
        atomic {
            refused = capture_open;
            if
#ifndef WITH_EARLY_RECORD
            :: !refused -> captured[e] = submitted & (15 ^ safe)
#endif
            :: else
            fi
        };
        atomic { lock(); was_late = was_late || sealing_late };
#ifndef WITH_LATE_RETURN
        reopen_epoch();
#endif
        atomic { sealing--; sealing_late = sealing_late && sealing };
#ifdef WITH_LATE_RETURN
        reopen_epoch();
#endif
        if
        :: atomic { !refused ->
                recorded[e] = 1;
                is_late[e] = was_late;
#ifndef WITH_EARLY_UNWATCH
                watch--;
#endif
                e = 0;
                was_late = 0
            }
        :: atomic { refused -> e = 0; refused = 0; was_late = 0 }
        fi
    :: else
    fi
}

/* fence_may_submit, without the lock. Whether the epoch's fence is wanted, and the pool eager, is
   left open. */
inline pass()
{
#ifdef WITH_EARLY_LOOK
    passes = sealing == 0;
#else
    passes = 1;
#endif
#if defined(CAPTURES) && !defined(WITH_LATE_REFUSALS)
    before = refusals;
#endif
    atomic { seen = unsealed; was_late = late };
#ifdef WITH_LATE_REFUSALS
    before = refusals;
#endif
    if
    :: seen && !was_late -> passes = 0
#ifdef WITHOUT_PASSING_MARK
    :: seen && !was_late
#else
    :: seen && !was_late -> late = 1
#endif
    :: seen && was_late -> passes = 0 /* eager */
    :: seen && was_late
    :: !seen
    fi;
#ifndef WITH_EARLY_LOOK
    passes = passes && sealing == 0;
#endif
    atomic {
#ifndef WITHOUT_REFUSALS
        passes = passes && refusals == before;
#endif
        seen = 0;
        was_late = 0;
        before = 0
    }
}

/* The call begins, in one step with its first load. */
inline begin(work)
{
    if
    :: frees_under_way == 0 -> needs_free = needs_free | (work & (15 ^ safe))
    :: else
    fi
}

/* submission_begin's part of this, fence_submit, and the driver's call. */
inline submit(work)
{
    if
#ifdef WITHOUT_LOOK
    :: atomic { watch > 0 -> begin(work); passes = 1 }
#endif
    :: atomic { watch > 0 -> begin(work) }; pass()
    :: atomic { watch == 0 -> begin(work); passes = 1 }
    fi;
    if
    :: atomic { !passes -> lock() };
        if
        :: seal()
        :: skip /* not wanted */
        fi;
#ifndef WITHOUT_PATIENCE
        do
        :: atomic { sealing > 0 -> unlock() }; lock()
        :: sealing == 0 -> break
        :: sealing > 0 -> break /* it has waited long enough */
        od;
#ifndef WITHOUT_MARK
        atomic {
            if
            :: sealing > 0 -> sealing_late = 1
            :: else
            fi
        };
#endif
#endif
        if
        :: unsealed -> atomic { late = 1; unlock() }
        :: atomic { else -> unlock() }
        fi
    :: passes
    fi;
    atomic { passes = 0; submitted = submitted | (work & (15 ^ safe)) }
}

/* A free into a magazine. */
inline free_block(b)
{
    atomic { frees_under_way++; needs_free = 0 };
#ifdef WITH_LATE_EPOCH
    seen = unsealed && !late;
    e = open_epoch;
#else
    e = open_epoch;
    seen = unsealed && !late;
#endif
    if
    :: !seen ->
#ifndef WITHOUT_ARMING
        if
        :: !unsealed ->
            watch++;
            atomic {
                if
                :: unsealed -> watch--
                :: else -> unsealed = 1
                fi;
                late = 0
            }
        :: else -> late = 0
        fi
#else
        late = 0
#endif
    :: else
    fi;
    atomic {
#ifndef CAPTURES
        (b == 0 || one_is_free) -> one_is_free = 1;
#endif
        freed_in[b] = e;
        e = 0;
        seen = 0;
        frees_under_way--
    }
}

/* What is found out about a fence covers every earlier one. Of work that is safe nothing is read
   again: it has one value, for fewer states. */
inline learn(e)
{
    safe = safe | captured[e];
    forget()
}

inline forget()
{
    submitted = submitted & (15 ^ safe);
    needs_free = needs_free & (15 ^ safe);
    i = 0;
    do
    :: i < EPOCHS -> captured[i] = captured[i] & (15 ^ safe); i++
    :: else -> break
    od;
    i = 0
}

/* With the lock. After the last try no work is looked at. */
inline allocate(b)
{
    seal();
    if
    :: skip
    :: atomic { /* some fence is done: the GPU decides which */
        e = open_epoch - 1;
        do
        :: e > complete_epoch -> e--
        :: e > complete_epoch && recorded[e] -> complete_epoch = e; learn(e)
        :: e <= complete_epoch -> break
        od
    }
    :: atomic { /* all later work behind the oldest fence that will do */
        e = freed_in[b];
        do
        :: e < EPOCHS && (!recorded[e] || is_late[e]) -> e++
        :: e < EPOCHS && recorded[e] && !is_late[e] ->
            if
            :: !capture_open ->
                assert(!(captured[e] & needs_free & (15 ^ safe))); /* STALL */
                ordered_epoch = (e > ordered_epoch -> e : ordered_epoch);
                learn(e)
            :: else
            fi;
            break
        :: e == EPOCHS -> break
        od
    }
    fi;
    atomic {
        if
        :: freed_in[b] <= complete_epoch || freed_in[b] <= ordered_epoch ->
            assert(safe & (1 << b)); /* HAZARD */
            freed_in[b] = 0
        :: else
        fi;
        if
        :: tries == 0 -> safe = 15; forget()
        :: else
        fi;
        e = 0;
        unlock()
    }
}

proctype Program(byte b)
{
    byte e, before;
    bit refused, seen, was_late, passes;
    submit(1 << b);
    free_block(b);
#ifdef CAPTURES
    if
    :: b == 0 -> submit(4)
    :: else
    fi
#else
    submit(4 << b)
#endif
}

/* It waits for the others rather than end early: fewer states, and they do the same. */
proctype Allocator()
{
    byte e, i;
    bit refused, was_late;
    byte tries = 2;
    do
    :: atomic { tries > 0 && freed_in[0] > 0 && !pool_lock -> tries--; pool_lock = 1 };
        allocate(0)
    :: atomic { tries > 0 && freed_in[1] > 0 && !pool_lock -> tries--; pool_lock = 1 };
        allocate(1)
    :: _nr_pr == 2 -> break
    od
}

proctype Capturer()
{
    capture_open = 1;
    capture_open = 0;
    capture_open = 1;
    capture_open = 0
}

init {
    atomic {
        run Allocator();
        run Program(0);
        run Program(1);
#ifdef CAPTURES
        run Capturer()
#endif
    };
    _nr_pr == 1;
    assert((freed_in[0] < open_epoch && freed_in[1] < open_epoch) || unsealed); /* FORGOTTEN */
    assert(watch == unsealed)
}
