/* SPDX-License-Identifier: BSD-2-Clause */
/* Requests on the page of a process: their replies, and its doorbell, which a writer of noise
 * rings. The page may get another file meanwhile. */
#include "tests/unit/page_case.h"

static atomic_bool over;

/* As the control thread: serves requests until all is over. Replies the request's own text. */
static void *serve(void *unused)
{
    static struct page_request r;
    static unsigned long served;
    for (unsigned seen = 0; !atomic_load(&over);) {
        unsigned now = atomic_load(&heard);
        if (now == seen) {
            usleep(100);
            continue;
        }
        seen = now;
        for (unsigned slot = 0; slot < PAGE_SLOTS; slot++)
            if (page_read_request(slot, &r)) {
                REQUIRE(r.slot == slot && r.ask_bytes <= PAGE_ASK_BYTES && !r.ask[r.ask_bytes]);
                page_answer_request(&r, &(struct page_answer){.code = PAGE_REPLY_PARTLY,
                                                              .value = r.sequence,
                                                              .text = r.ask,
                                                              .text_bytes = r.ask_bytes});
                served++;
            }
    }
    return (void *)served;
}

struct asker {
    struct page *p;
    unsigned slot;
};

/* Asks as page/layout.h says, and waits for each reply. */
static void *ask_on(void *arg)
{
    const struct asker *a = arg;
    struct page_slot *s = &a->p->slots[a->slot];
    for (uint32_t i = 1; i <= 50; i++) {
        s->ask_bytes = (uint32_t)snprintf(s->ask, sizeof s->ask, "%u of %u", i, a->slot);
        __atomic_store_n(&s->ask_sequence, i, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&a->p->doorbell, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &a->p->doorbell, FUTEX_WAKE, 1, NULL, NULL, 0);
        for (uint32_t now; (now = __atomic_load_n(&s->reply_sequence, __ATOMIC_SEQ_CST)) != i;)
            syscall(SYS_futex, &s->reply_sequence, FUTEX_WAIT, now, NULL, NULL, 0);
        REQUIRE(s->reply_bytes == s->ask_bytes && !memcmp(s->reply, s->ask, s->ask_bytes));
        REQUIRE(s->reply_code == PAGE_REPLY_PARTLY && s->reply_value == i);
    }
    return NULL;
}

CASE(each_request_gets_its_reply)
{
    pthread_t server, askers[PAGE_SLOTS];
    struct asker each[PAGE_SLOTS];
    alarm(30);
    REQUIRE(make(dir) && page_start_doorbell(hear));
    struct page *p = map_page();
    REQUIRE(!pthread_create(&server, NULL, serve, NULL));
    for (unsigned i = 0; i < PAGE_SLOTS; i++) {
        each[i] = (struct asker){p, i};
        REQUIRE(!pthread_create(&askers[i], NULL, ask_on, &each[i]));
    }
    for (unsigned i = 0; i < PAGE_SLOTS; i++)
        pthread_join(askers[i], NULL);
    atomic_store(&over, true);
    void *served;
    pthread_join(server, &served);
    REQUIRE((unsigned long)served == 50 * PAGE_SLOTS);
    static struct page_request again;
    for (unsigned i = 0; i < PAGE_SLOTS; i++)
        REQUIRE(!page_read_request(i, &again)); /* none is served twice */
}

/* Another process that writes noise over the whole page, rings, and cuts the file now and then. */
static void scribble(struct page *p, uint64_t end_ns)
{
    uint64_t seed = (uint64_t)getpid();
    uint64_t *words = (uint64_t *)(void *)p;
    for (unsigned rings = 0; rings < 100 || clock_now_ns() < end_ns; rings++) {
        for (size_t i = 0; i < 512; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            words[(seed >> 20) % (sizeof *p / 8)] = seed;
        }
        p->doorbell++;
        syscall(SYS_futex, &p->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        for (unsigned i = 0; i < PAGE_SLOTS; i++)
            p->slots[i].ask_sequence++;
    }
}

CASE(a_writer_of_noise_gets_one_pass_a_millisecond_and_harms_nothing)
{
    pthread_t server;
    struct page_state s = state_of("{}");
    alarm(30);
    REQUIRE(make(dir) && page_start_doorbell(hear));
    struct page *p = map_page();
    REQUIRE(!pthread_create(&server, NULL, serve, NULL));
    uint64_t start_ns = clock_now_ns(), end_ns = start_ns + UINT64_C(1000000000);
    pid_t child = fork();
    if (child == 0) {
        scribble(p, end_ns);
        _exit(0);
    }
    unsigned publications = 0;
    while (clock_now_ns() < end_ns || atomic_load(&heard) < 2 || publications < 3) {
        REQUIRE(page_publish(&s));
        page_watched_until_ns();
        publications++;
        usleep(1000);
    }
    unsigned all = atomic_load(&heard); /* more come while the clock is read */
    uint64_t took_ms = (clock_now_ns() - start_ns) / 1000000;
    REQUIRE(all <= took_ms + 2);
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    /* The page is as it should be after the next state. */
    REQUIRE(page_publish(&s));
    REQUIRE(p->sequence == 2 * (publications + 2) && !memcmp(p->body, "{}", 2));
    atomic_store(&over, true);
    pthread_join(server, NULL);
}

/* Rings before the thread rests: it has the next ring at its next look, whatever else runs. */
enum { OWN_RINGS = 10 };
static struct page *_Atomic own_doorbell;
static uint64_t ring_ns[OWN_RINGS];

static void hear_and_ring(void)
{
    struct page *p = atomic_load(&own_doorbell);
    unsigned rings = atomic_load(&heard);
    if (p && rings < OWN_RINGS) {
        ring_ns[rings] = clock_now_ns();
        __atomic_fetch_add(&p->doorbell, 1, __ATOMIC_SEQ_CST);
    }
    hear();
}

CASE(a_ring_during_the_rest_is_heard_and_each_rest_is_a_millisecond)
{
    REQUIRE(make(dir) && page_start_doorbell(hear_and_ring));
    wait_for_rings(1);
    struct page *p = map_page();
    atomic_store(&own_doorbell, p);
    raise_doorbell(p);
    wait_for_rings(OWN_RINGS + 1);
    for (unsigned i = 2; i < OWN_RINGS; i++)
        REQUIRE(ring_ns[i] - ring_ns[i - 1] >= PAGE_REST_NS);
}

/* The doorbell's thread has read the doorbell of the file before, and comes to its wait at the new
 * one. */
static atomic_bool holds_ring;

static void hear_and_hold(void)
{
    hear();
    for (int i = 0; atomic_load(&holds_ring) && i < 5000; i++)
        usleep(1000);
}

CASE(a_ring_at_a_new_file_is_heard_whatever_the_bell_before_was)
{
    struct page_state s = state_of("{}");
    REQUIRE(make(dir) && page_start_doorbell(hear_and_hold));
    wait_for_rings(1);
    atomic_store(&holds_ring, true);
    raise_doorbell(map_page());
    wait_for_rings(2);
    REQUIRE(!unlink(path_of(own_name())) && page_renew(&s) && page_renew_doorbell());
    raise_doorbell(map_page());
    atomic_store(&holds_ring, false);
    wait_for_rings(3);
}

/* As many times as there are threads for, and once more. */
CASE(a_page_whose_bell_nobody_hears_says_so_until_the_process_ends)
{
    struct page_state s = state_of("{}");
    int heard_files = 0;
    REQUIRE(make(dir) && page_start_doorbell(hear));
    wait_for_rings(1);
    for (bool hears = true; hears && heard_files < 100; heard_files += hears) {
        unsigned before = atomic_load(&heard);
        REQUIRE(!truncate(path_of(own_name()), 0) && page_renew(&s));
        hears = page_renew_doorbell();
        if (hears)
            wait_for_rings(before + 1);
    }
    REQUIRE(heard_files == 7);
    REQUIRE(!unlink(path_of(own_name())) && page_renew(&s) && !page_renew_doorbell());
    page_remove();
}

PLAY_TESTS
