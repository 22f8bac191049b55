/* SPDX-License-Identifier: BSD-2-Clause */
/* Two processes ask each other for memory (shim/share/neighbour.c, lend.h). Each has threads that
 * ask while they hold a lock of the program's (the interpreter's, a framework's allocator's). Its
 * control thread replies, asks in the background, and waits for that lock for a bounded time. There
 * are no other timeouts here: the threads end even if none gives up. A thread that waits for ever
 * is a state that nothing leads out of. One slot stands for all.
 *
 * PARKS: there is memory for one of the two. A process that is asleep parks (shim/park/park.h) when
 * it is asked, and its control thread looks in turns, for a bounded time, whether that has ended.
 * In each process a thread that holds the program's lock makes a use, which cancels a park or waits
 * for the wake. The park thread then asks the other process until there is memory. The threads that
 * ask as above are those of process 1. They take the memory if they find it free, and free it
 * later. More of the gate is in gate.pml.
 *
 * Steps that can be taken away or added:
 * WITH_POOL_LOCK        a thread asks with its pool's lock held
 * WITH_CONTROL_WAITS    the control thread waits for the reply when it asks
 * WITH_ONE_LOCK         the control thread takes the lock of those that ask before it replies
 * WITHOUT_BOUND         it waits for the lock of the program for ever
 * WITH_EARLY_LOOK       it reads the request before it clears the bell
 * WITHOUT_BELL          a request without a wait does not ring
 * WITHOUT_PARK_BOUND    it waits for the end of its park for ever
 * WITH_EARLY_RELEASE    a park gives the memory back before it has left the gate */
#ifndef ASKERS
#define ASKERS 1
#endif
#ifndef TICKS
#define TICKS 1
#endif
#define OTHER (1 - p)

bool program[2], pool[2], asking[2], slot[2], bell[2];
bool asked[2], replied[2]; /* the last bits of the numbers: one request at a time */
byte ended;

#ifdef PARKS
#define NOBODY 2
#define BLOCK 3 /* of a thread that asked */
#define ENDS (ASKERS + 2)
mtype = { OPEN, CLOSING, LEAVING, PARKED, WAKING };
mtype gate[2];
byte memory;     /* whose it is; at first that of process 0 */
bool parks[2];   /* a job of the park thread */
bool waiting[2]; /* the reply waits for it */
#else
#define ENDS (2 * ASKERS)
#endif

#define LOCK(l) d_step { !l; l = true }
#define UNLOCK(l) l = false

inline ask()
{
    LOCK(asking[p]);
    /* A slot is free if no asker has its lock and its last request has its reply. */
    d_step { !slot[OTHER] && asked[OTHER] == replied[OTHER]; slot[OTHER] = true }
    asked[OTHER] = !asked[OTHER];
    bell[OTHER] = true;
    replied[OTHER] == asked[OTHER];
    UNLOCK(slot[OTHER]);
    UNLOCK(asking[p])
}

/* Threads that ask go one after the other, because each has the lock of the program's from its
 * first step to its last. So one process plays all of them. */
proctype asker(byte p)
{
    byte left = ASKERS;
    bool has_block;
    do
    :: left > 0 -> LOCK(program[p]);
       LOCK(pool[p]); /* of the own pool first */
#ifndef WITH_POOL_LOCK
       UNLOCK(pool[p]);
#endif
       ask();
#ifdef PARKS
       if
       :: atomic { memory == NOBODY -> memory = BLOCK; has_block = true }
       :: memory != NOBODY
       fi;
#endif
#ifdef WITH_POOL_LOCK
       UNLOCK(pool[p]);
#endif
#ifdef PARKS
       UNLOCK(program[p]);
       if
       :: has_block -> atomic { has_block = false; memory = NOBODY }
       :: else
       fi;
       atomic { ended++; left-- }
#else
       atomic { UNLOCK(program[p]); ended++; left-- }
#endif
    :: else -> break
    od
}

inline reply()
{
#ifdef WITH_ONE_LOCK
    LOCK(asking[p]);
#endif
    LOCK(pool[p]);
    UNLOCK(pool[p]);
    /* Frameworks: another thread waits for the program's lock, this one for a time. */
    if
    :: !program[p]
#ifndef WITHOUT_BOUND
    :: program[p]
#endif
    fi;
    if
    :: replied[p] = asked[p]
#ifdef PARKS
    :: atomic { parks[p] = true; waiting[p] = true } /* asleep; or a park is under way */
#endif
    fi;
#ifdef WITH_ONE_LOCK
    UNLOCK(asking[p]);
#endif
}

/* MIN_FREE: never waits, not even for the locks. */
inline ask_in_background()
{
    if
    :: d_step { !asking[p] && !slot[OTHER] && asked[OTHER] == replied[OTHER];
                asking[p] = true; slot[OTHER] = true };
       asked[OTHER] = !asked[OTHER];
#ifndef WITHOUT_BELL
       bell[OTHER] = true;
#endif
#ifdef WITH_CONTROL_WAITS
       replied[OTHER] == asked[OTHER];
#endif
       UNLOCK(slot[OTHER]);
       UNLOCK(asking[p])
    :: asking[p] || slot[OTHER] || asked[OTHER] != replied[OTHER]
    fi
}

#ifdef PARKS
#define IS_NEW (asked[p] != replied[p] && !waiting[p])
#else
#define IS_NEW (asked[p] != replied[p])
#endif

proctype control(byte p)
{
    byte ticks;
    bool wanted;
end:
    do
    :: bell[p] ->
#ifdef WITH_EARLY_LOOK
       wanted = IS_NEW;
       bell[p] = false;
#else
       bell[p] = false;
       wanted = IS_NEW;
#endif
       if
       :: wanted -> reply()
       :: else
       fi
    :: ticks < TICKS ->
       ticks++;
       ask_in_background()
#ifdef PARKS
#ifdef WITHOUT_PARK_BOUND
    :: atomic { waiting[p] && !parks[p] -> waiting[p] = false; replied[p] = asked[p] }
#else
    :: atomic { waiting[p] -> waiting[p] = false; replied[p] = asked[p] }
#endif
#endif
    od
}

#ifdef PARKS
proctype user(byte p)
{
    LOCK(program[p]);
    do
    :: atomic { gate[p] == CLOSING -> gate[p] = OPEN }
    :: atomic { gate[p] == PARKED -> gate[p] = WAKING }
    :: atomic { gate[p] == OPEN -> assert(memory == p); break }
    od;
    atomic { UNLOCK(program[p]); ended++ }
}

proctype park_thread(byte p)
{
end:
    do
    :: gate[p] == WAKING ->
       do
       :: atomic { memory == NOBODY -> memory = p }
          gate[p] = OPEN;
          break
       :: memory != NOBODY ->
          parks[p] = false; /* refused */
          ask()
       od
    :: parks[p] && gate[p] != WAKING ->
       if
       :: atomic { gate[p] == OPEN -> gate[p] = CLOSING }
#ifdef WITH_EARLY_RELEASE
          memory = NOBODY;
#endif
          if
          :: atomic { gate[p] == CLOSING -> gate[p] = LEAVING }
             memory = NOBODY;
             gate[p] = PARKED
          :: gate[p] == OPEN
          fi
       :: gate[p] == PARKED
       :: gate[p] == WAKING
       fi;
       parks[p] = false
    od
}
#endif

init
{
    atomic {
#ifdef PARKS
        gate[0] = OPEN;
        gate[1] = PARKED;
        run user(0);
        run user(1);
        run park_thread(0);
        run park_thread(1);
#endif
        run control(0);
        run control(1);
#ifndef PARKS
        run asker(0);
#endif
        run asker(1)
    }
    bell[0] = true; /* a reader wants a new state */
    /* Nothing can go on any more. */
    timeout -> assert(ended == ENDS && asked[0] == replied[0] && asked[1] == replied[1])
}
