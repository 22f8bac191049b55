/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The gate (shim/park/gate.h). Two threads of the program make uses, each of which submits work;
 * the park thread closes, drains, waits for the work, copies, leaves, and wakes. A GPU ends work at
 * any time, and writes the memory then. All steps have one order for all threads: the code's are
 * sequentially consistent, but for the end of a mark. That may be seen late, which only lets the
 * park thread wait longer.
 *
 * NESTS: a signal handler makes a use inside a use of thread 0, and one while that thread sleeps at
 * the gate. FAILS: so many wakes find no memory. JOINS: a second park, which looks at the state and
 * acts on it later, sends more memory away. ASKS: a request wakes, or meets a use's wake, and is
 * answered. RETAINS: a park copies only what is not in the store already (shim/park/retain.h). Work
 * then brings old bytes back, and a copy may stop in the middle. WHOLE: the driver makes a
 * checkpoint of the parked process, and one more thread makes calls that are no uses, as call
 * scopes (shim/driver/call_scope.h). Each is in a job of a pool. A wake waits for its end once the
 * driver is open, here without a bound. WITH_.. and WITHOUT_..: a step done wrong, which has to be
 * noticed.
 *
 * Promises: no work is given to the driver, or runs, while the memory is away; what comes back is
 * what was written last; who hears that the process is awake finds its memory there; the driver is
 * not called in a checkpointed process; every thread comes to its end.
 */
#define N 2
#ifndef RUNS
#define RUNS 2
#endif
#ifndef PARKS
#define PARKS 2
#endif

mtype = { OPEN, CLOSING, LEAVING, PARKED, WAKING };
mtype state = OPEN;
bit gate;                /* POOL_WATCH_GATE */
byte mark[N];            /* the depth: marked unless 0 */
byte turn, failures;
bit mapped = 1;
byte version, saved = 255;
byte known = 255, hash;  /* what the store has, as retained copies know it, and the device */
byte running;            /* work on the GPU */
byte ended;
bit done;

/* What each thread has read; the second half is the handler's. */
byte seen[2 * N + 1], before[2 * N + 1];
bit failed[2 * N + 1];

#ifdef WHOLE
#define THREADS (N + 1)
bit closed, checkpointed, job;
byte scopes;
#else
#define THREADS N
#endif

active proctype gpu()
{
end:
    do
    :: atomic { running > 0 -> assert(mapped); running--;
#ifdef RETAINS
        version = 1 - version
#else
        version++
#endif
       }
    od
}

inline knock()
{
    if
    :: atomic { state == CLOSING -> state = OPEN }
    :: state != CLOSING ->
        if
        :: atomic { state == PARKED -> state = WAKING }
        :: state != PARKED
        fi
    fi
}

/* What is not read again has one value: fewer states. */
inline forget(i)
{
    before[i] = 0;
    seen[i] = 0
}

/* i: t, or N + t for the handler */
inline arrive(i)
{
    before[i] = failures;
    do
    :: true ->
#ifndef WITH_LATE_TURN
        seen[i] = turn;
#endif
        if
        :: atomic { !gate -> forget(i) }; break
        :: else
        fi;
        if
        :: atomic { failures != before[i] -> failed[i] = 1; forget(i) }; break
        :: else
        fi;
        knock();
#ifdef WITH_LATE_TURN
        seen[i] = turn;
#endif
#ifdef NESTS
        if
        :: i == 0 && !handled -> handled = 1; use(N); finish(N)
        :: true
        fi;
#endif
        turn != seen[i]
    od
}

inline arrive_in_handler(i)
{
    before[i] = failures;
    do
    :: true ->
        seen[i] = turn;
        if
        :: atomic { !gate -> forget(i) }; break
        :: else
        fi;
        if
        :: atomic { failures != before[i] -> failed[i] = 1; forget(i) }; break
        :: else
        fi;
        knock();
        turn != seen[i]
    od
}

/* Until the thread is marked and has seen no bit, or gets an error. */
inline begin(t)
{
    do
    :: true ->
#ifdef WITH_LATE_MARK
        if
        :: !gate -> mark[t]++; break
        :: else -> mark[t]++
        fi;
#else
        mark[t]++;
        if
        :: !gate -> break
        :: else
        fi;
#endif
        mark[t]--;
        arrive(t);
        if
        :: failed[t] -> break
        :: else
        fi
    od
}

inline use(i)
{
    do
    :: true ->
        mark[0]++;
        if
        :: !gate -> break
        :: else
        fi;
        mark[0]--;
        arrive_in_handler(i);
        if
        :: failed[i] -> break
        :: else
        fi
    od
}

inline submit()
{
    atomic { assert(mapped); running++ }
}

inline finish(i)
{
    if
    :: failed[i] -> failed[i] = 0
    :: else ->
        submit();
#ifdef WITHOUT_DEPTH
        mark[0] = 0
#else
        mark[0]--
#endif
    fi
}

proctype thread(byte t)
{
    byte left = RUNS;
    bit handled = (t != 0);

    do
    :: left == 0 -> break
    :: else ->
        left--;
        begin(t);
        if
        :: failed[t] -> failed[t] = 0
        :: else ->
#ifdef NESTS
            if
            :: !handled -> handled = 1; use(N); finish(N)
            :: true
            fi;
#endif
            submit();
#ifdef WITHOUT_DEPTH
            mark[t] = 0
#else
            mark[t]--
#endif
        fi
    od;
    ended++
}

#ifdef WHOLE
/* Until the driver is open: gate_arrive_until. */
inline arrive_at_driver(i)
{
    before[i] = failures;
    do
    :: true ->
        seen[i] = turn;
        if
#ifdef WITH_WAIT_FOR_OPEN
        :: atomic { !gate -> forget(i) }; break
#else
        :: atomic { !closed -> forget(i) }; break
#endif
        :: else
        fi;
        if
        :: atomic { failures != before[i] -> failed[i] = 1; forget(i) }; break
        :: else
        fi;
        knock();
        turn != seen[i]
    od
}

/* call_scope_begin, call_scope_is_admitted, closed_await */
proctype caller()
{
    byte left = RUNS;

    do
    :: left == 0 -> break
    :: else ->
        left--;
        job = 1;
        do
        :: true ->
#ifdef WITH_LATE_SCOPE
            if
            :: !closed -> scopes++; break
            :: else -> scopes++
            fi;
#else
            scopes++;
            if
            :: !closed -> break
            :: else
            fi;
#endif
            scopes--;
            arrive_at_driver(2 * N);
            failed[2 * N] = 0 /* such a call gets the error; here it tries again */
        od;
        assert(!checkpointed);
        scopes--;
        job = 0
    od;
    ended++
}
#endif

inline is_parked()
{
    state = PARKED;
#ifndef WITHOUT_TURN
    turn++
#endif
}

inline open_gate()
{
    state = OPEN;
    gate = 0;
    turn++
}

/* Between the look and the step a use may come. Then its wake is next. */
inline second_park()
{
    if
    :: state == PARKED ->
        if
        :: atomic { state == PARKED -> state = LEAVING };
            is_parked()
        :: atomic { state != PARKED -> skip };
#ifdef WITH_OPEN_AFTER_JOIN
            open_gate()
#endif
        fi
    :: state != PARKED
    fi
}

/* 254: bytes of two versions. */
inline copy_what_differs()
{
#ifndef WITH_EARLY_HASH
    hash = version;
#endif
    if
    :: known == hash
    :: else ->
#ifndef WITHOUT_FORGET
        known = 255;
#endif
#ifdef WITH_EARLY_KNOWN
        known = hash;
#endif
        saved = 254;
        if
        :: state == CLOSING -> saved = version; known = hash
        :: state != CLOSING -> goto undo
        fi
    fi
}

active proctype park()
{
    byte tries = PARKS;
    bit joins, asks; /* what is to come */
    bit asked, heard; /* a request made the wake, or met it */

    do
    :: tries == 0 -> break
    :: else ->
        tries--;
#ifdef WITH_EARLY_LOOK
        mark[0] == 0 && mark[1] == 0;
#endif
#ifdef WITH_EARLY_HASH
        hash = version;
#endif
        atomic { state == OPEN; state = CLOSING };
        gate = 1;
#if !defined(WITHOUT_DRAIN) && !defined(WITH_EARLY_LOOK)
        /* Gives up at any time, or when cancelled. One mark after the other. */
        if
        :: mark[0] == 0
        :: true -> goto undo
        fi;
        if
        :: mark[1] == 0
        :: true -> goto undo
        fi;
#endif
#ifndef WITHOUT_QUIET
        if
        :: running == 0
        :: true -> goto undo
        fi;
#endif
#ifdef RETAINS
        copy_what_differs();
#else
        saved = version;
#endif
        if
        :: atomic { state == CLOSING -> state = LEAVING }
        :: atomic { state != CLOSING -> goto undo }
        fi;
        mapped = 0;
#ifdef WHOLE
        closed = 1;
#ifndef WITHOUT_SCOPES
        if
        :: scopes == 0 -> checkpointed = 1
        :: true -> closed = 0; turn++ /* gives up: the arenas alone are away */
        fi;
#else
        checkpointed = 1;
#endif
#endif
        is_parked();
#ifdef JOINS
        joins = 1;
#endif
#ifdef ASKS
        asks = 1;
#endif
asleep:
        /* In the end somebody asks for a wake: no thread is left to do it. */
        if
        :: state == WAKING
        :: atomic { state == PARKED && ended == THREADS -> state = WAKING }
        :: joins ->
            joins = 0;
            second_park();
            goto asleep
        :: asks ->
            asks = 0;
            if
            :: atomic { state == PARKED -> state = WAKING; asked = 1 }
            :: atomic { state == WAKING -> heard = 1 } /* the use's wake is the answer */
            fi;
#ifdef WITH_EARLY_ANSWER
            assert(!heard || mapped);
#endif
        fi;
#ifdef ASKS
        if
        :: asked -> asked = 0; is_parked(); goto asleep /* no use gets an error */
        :: true
        fi;
#endif
#ifdef FAILS
        if
        :: failures < FAILS ->
#ifdef WITH_DROPPED_COPY
            saved = 254;
#endif
            failures++;
            is_parked();
            asks = asks || heard; /* it meets the next wake, or makes one */
            heard = 0;
            goto asleep
        :: true
        fi;
#endif
#ifdef WITH_EARLY_OPEN
        gate = 0;
#endif
#ifdef WHOLE
#ifdef WITH_EARLY_CALLS
        closed = 0;
#endif
        checkpointed = 0;
        closed = 0;
#ifndef WITHOUT_DRIVER_TURN
        turn++;
#endif
        job == 0;
#endif
        mapped = 1;
        assert(saved == version);
undo:
        open_gate();
        assert(!(asked || heard) || mapped);
        asked = 0;
        heard = 0
    od;
    done = 1
}

active proctype watch()
{
end:
    timeout -> assert(ended == THREADS && done && running == 0)
}

#ifdef WHOLE
init { atomic { run thread(0); run thread(1); run caller() } }
#else
init { atomic { run thread(0); run thread(1) } }
#endif
