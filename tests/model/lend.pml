/* SPDX-License-Identifier: BSD-2-Clause */
/* Two processes ask each other for memory (shim/share/neighbour.c, lend.h). Each has threads that
 * ask while they hold a lock of the program's (the interpreter's, a framework's allocator's). Its
 * control thread replies, asks in the background, and waits for that lock for a bounded time. There
 * are no other timeouts here: the threads end even if none gives up. A thread that waits for ever
 * is a state that nothing leads out of. One slot stands for all.
 *
 * Steps that can be taken away or added:
 * WITH_POOL_LOCK        a thread asks with its pool's lock held
 * WITH_CONTROL_WAITS    the control thread waits for the reply when it asks
 * WITH_ONE_LOCK         the control thread takes the lock of those that ask before it replies
 * WITHOUT_BOUND         it waits for the lock of the program for ever
 * WITH_EARLY_LOOK       it reads the request before it clears the bell
 * WITHOUT_BELL          a request without a wait does not ring */
#ifndef ASKERS
#define ASKERS 1
#endif
#ifndef TICKS
#define TICKS 1
#endif
#define OTHER (1 - p)

bool program[2], pool[2], asking[2], slot[2], bell[2];
byte asked[2], replied[2], ended;

#define LOCK(l) d_step { !l; l = true }
#define UNLOCK(l) l = false

/* Threads that ask go one after the other, because each has the lock of the program's from its
 * first step to its last. So one process plays all of them. */
proctype asker(byte p)
{
    byte left = ASKERS;
    do
    :: left > 0 -> LOCK(program[p]);
       LOCK(pool[p]); /* of the own pool first */
#ifndef WITH_POOL_LOCK
       UNLOCK(pool[p]);
#endif
       LOCK(asking[p]);
       /* A slot is free if no asker has its lock and its last request has its reply. */
       d_step { !slot[OTHER] && asked[OTHER] == replied[OTHER]; slot[OTHER] = true }
       asked[OTHER]++;
       bell[OTHER] = true;
       replied[OTHER] == asked[OTHER];
       UNLOCK(slot[OTHER]);
       UNLOCK(asking[p]);
#ifdef WITH_POOL_LOCK
       UNLOCK(pool[p]);
#endif
       atomic { UNLOCK(program[p]); ended++; left-- }
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
    replied[p] = asked[p];
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
       asked[OTHER]++;
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

proctype control(byte p)
{
    byte ticks;
    bool wanted;
end:
    do
    :: bell[p] ->
#ifdef WITH_EARLY_LOOK
       wanted = asked[p] != replied[p];
       bell[p] = false;
#else
       bell[p] = false;
       wanted = asked[p] != replied[p];
#endif
       if
       :: wanted -> reply()
       :: else
       fi
    :: ticks < TICKS ->
       ticks++;
       ask_in_background()
    od
}

init
{
    atomic {
        run control(0);
        run control(1);
        run asker(0);
        run asker(1)
    }
    bell[0] = true; /* a reader wants a new state */
    /* Nothing can go on any more. */
    timeout -> assert(ended == 2 * ASKERS && asked[0] == replied[0] && asked[1] == replied[1])
}
