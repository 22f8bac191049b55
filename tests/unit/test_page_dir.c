/* SPDX-License-Identifier: BSD-2-Clause */
/* The directory of pages: which ones serve, names, and what becomes of stale files. */
#include "tests/unit/page_case.h"

#include <sched.h>
#include <sys/mount.h>

static void refuses(const char *path, const char *words)
{
    unsigned before = entries_of(path);
    REQUIRE(!make(path));
    REQUIRE(why && strstr(why, words));
    REQUIRE(entries_of(path) == before);
    REQUIRE(!*page_folder());
}

CASE(a_directory_that_does_not_serve_is_refused_with_the_reason)
{
    char path[96];
    REQUIRE(!mkdir(dir, 0700));
    snprintf(path, sizeof path, "%s/link", root);
    REQUIRE(!symlink(dir, path));
    refuses(path, "symbolic link");
    /* The kernel follows a link before a slash, whatever O_NOFOLLOW says. */
    static const char *const tails[] = {"/", "//", "/.", "/./", "/.."};
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        snprintf(path, sizeof path, "%s/link%s", root, tails[i]);
        refuses(path, "ends in");
    }
    snprintf(path, sizeof path, "%s/file", root);
    close(open(path, O_CREAT | O_WRONLY, 0700));
    refuses(path, "no directory");
    snprintf(path, sizeof path, "%s/missing/pages", root);
    refuses(path, "cannot be made");
    for (unsigned mode = 1; mode < 0100; mode <<= 1) {
        REQUIRE(!chmod(dir, 0700 | mode));
        refuses(dir, "others may use it");
    }
    REQUIRE(!chmod(dir, 0700));
    REQUIRE(make(dir));
}

CASE(a_directory_of_another_user_is_refused)
{
    if (geteuid())
        _exit(SKIP);
    REQUIRE(!mkdir(dir, 0700) && !chown(dir, NOBODY, NOBODY));
    refuses(dir, "another user");
    REQUIRE(!chown(dir, 0, 0) && !chmod(root, 0755) && !setresuid(NOBODY, NOBODY, NOBODY));
    refuses(dir, "cannot be opened");
}

CASE(a_full_or_read_only_file_system_leaves_nothing_behind)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mkdir(dir, 0700) || mount("none", dir, "tmpfs", 0, "size=65536,mode=0700"))
        _exit(SKIP);
    refuses(dir, "no room");
    REQUIRE(errno == ENOSPC);
    REQUIRE(!mount("none", dir, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=65536"));
    refuses(dir, "no file can be made");
    REQUIRE(!mount("none", dir, "tmpfs", MS_REMOUNT, "size=1m"));
    REQUIRE(make(dir));
}

CASE(the_umask_takes_no_right_of_the_owner)
{
    struct stat st;
    if (!geteuid()) /* nothing is closed to root */
        REQUIRE(!chmod(root, 0755) && !chown(root, NOBODY, NOBODY) &&
                !setresuid(NOBODY, NOBODY, NOBODY));
    umask(0777);
    REQUIRE(make(dir));
    REQUIRE(!stat(dir, &st) && (st.st_mode & 07777) == 0700);
    REQUIRE(!stat(path_of(own_name()), &st) && (st.st_mode & 07777) == 0600);
    REQUIRE(umask(0) == 0777);
}

CASE(a_directory_that_was_removed_does_not_come_back_at_the_end)
{
    REQUIRE(make(dir));
    REQUIRE(!unlink(path_of(own_name())) && !rmdir(dir));
    page_remove();
    REQUIRE(access(dir, F_OK));
}

static unsigned char boot[16]; /* of the pages that touch makes */

static void touch(const char *name, uint64_t published_unix_ns)
{
    int fd = open(path_of(name), O_CREAT | O_RDWR, 0600);
    REQUIRE(fd >= 0 && !ftruncate(fd, sizeof(struct page)));
    REQUIRE(pwrite(fd, boot, sizeof boot, offsetof(struct page, boot_id)) == sizeof boot);
    REQUIRE(pwrite(fd, &published_unix_ns, 8, offsetof(struct page, published_unix_ns)) == 8);
    close(fd);
}

static bool is_there(const char *name)
{
    return !access(path_of(name), F_OK);
}

static atomic_int waiter;

static void *wait_at_doorbell(void *doorbell)
{
    atomic_store(&waiter, (int)syscall(SYS_gettid));
    for (;;)
        syscall(SYS_futex, doorbell, FUTEX_WAIT, 0, NULL, NULL, 0);
    return NULL;
}

CASE(stale_pages_are_removed_and_no_others)
{
    char here[PAGE_NAME_MAX], gone[PAGE_NAME_MAX], reused[PAGE_NAME_MAX], waits[PAGE_NAME_MAX];
    char unfinished[PAGE_NAME_MAX + 8];
    struct page_id self, id;
    uint64_t now_ns = (uint64_t)time(NULL) * 1000000000u, day_ns = UINT64_C(86400) * 1000000000u;
    pthread_t thread;
    REQUIRE(page_id_self(&self) && page_boot_id(boot) && !mkdir(dir, 0700));
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    REQUIRE(waitpid(child, NULL, 0) == child);
    id = (struct page_id){self.pid_namespace, (uint64_t)child, 1};
    page_id_name(&id, gone);
    snprintf(unfinished, sizeof unfinished, "%s" PAGE_UNFINISHED, gone);
    id.start_ticks = 2;
    page_id_name(&id, waits);
    id = (struct page_id){self.pid_namespace, (uint64_t)getppid(), 1};
    page_id_name(&id, reused);
    id = self;
    id.pid = 1;
    page_id_name(&id, here); /* process 1 did not start when this one did */
    touch(gone, now_ns);
    touch(unfinished, now_ns);
    touch(reused, now_ns);
    touch(here, now_ns);
    touch(waits, 0);
    touch("1-2-3.page", now_ns - day_ns + 60 * UINT64_C(1000000000));
    touch("1-2-4.page", now_ns - day_ns - UINT64_C(1000000000));
    touch("1-2-5.pages", 0);
    touch("1-2.page", 0);
    int fd = open(path_of(waits), O_RDWR);
    char *at = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(fd >= 0 && at != MAP_FAILED);
    REQUIRE(!pthread_create(&thread, NULL, wait_at_doorbell, at + offsetof(struct page, doorbell)));
    while (!atomic_load(&waiter))
        usleep(1000);
    REQUIRE(await_task_state(getpid(), atomic_load(&waiter), 'S'));
    REQUIRE(make(dir));
    REQUIRE(!is_there(gone) && !is_there(unfinished) && !is_there(reused) && !is_there(here));
    REQUIRE(is_there(waits) && is_there("1-2-3.page") && !is_there("1-2-4.page"));
    REQUIRE(is_there("1-2-5.pages") && is_there("1-2.page") && is_there(own_name()));
}

/* The folder may be shared with another machine, and all have the same first pid namespace. A file
 * of zeroes is one that a process there makes at this moment. */
CASE(pages_of_another_machine_are_removed_after_a_day)
{
    char name[PAGE_NAME_MAX], old[PAGE_NAME_MAX], made[PAGE_NAME_MAX + 8];
    uint64_t now_ns = (uint64_t)time(NULL) * 1000000000u, day_ns = UINT64_C(86400) * 1000000000u;
    struct page_id id;
    REQUIRE(page_id_self(&id) && page_boot_id(boot) && !mkdir(dir, 0700));
    boot[0] ^= 1;
    id.pid = 3999999;
    page_id_name(&id, name);
    touch(name, now_ns - day_ns + 60 * UINT64_C(1000000000));
    id.pid = 3999998;
    page_id_name(&id, old);
    touch(old, now_ns - day_ns - UINT64_C(1000000000));
    memset(boot, 0, sizeof boot);
    id.pid = 3999997;
    page_id_name(&id, made);
    strcat(made, PAGE_UNFINISHED);
    touch(made, 0);
    touch("1-2-6.page", 0);
    touch("1-2-7.page", 0);
    const struct timespec ago = {.tv_sec = time(NULL) - 86402}, then[2] = {ago, ago};
    REQUIRE(!utimensat(AT_FDCWD, path_of("1-2-7.page"), then, 0));
    REQUIRE(make(dir));
    REQUIRE(is_there(name) && !is_there(old) && is_there(made) && is_there("1-2-6.page"));
    REQUIRE(!is_there("1-2-7.page"));
}

CASE(a_stale_page_of_another_user_stays)
{
    if (geteuid())
        _exit(SKIP);
    REQUIRE(!mkdir(dir, 0700));
    touch("1-2-8.page", 1);
    touch("1-2-9.page", 1);
    REQUIRE(!chown(path_of("1-2-8.page"), NOBODY, NOBODY));
    REQUIRE(make(dir) && is_there("1-2-8.page") && !is_there("1-2-9.page"));
}

CASE(so_many_stale_pages_at_a_time_and_no_more)
{
    char name[PAGE_NAME_MAX];
    REQUIRE(!mkdir(dir, 0700));
    for (unsigned i = 0; i < PAGE_CLEAN_MAX + 6; i++) {
        snprintf(name, sizeof name, "1-%u-3.page", i);
        touch(name, 1);
    }
    REQUIRE(make(dir) && entries_of(dir) == 7);
}

CASE(names_of_pages_are_read_strictly)
{
    static const char *const bad[] = {"",
                                      ".page",
                                      "1-2.page",
                                      "1-2-3",
                                      "1-2-3.page ",
                                      "-1-2-3.page",
                                      "1--2-3.page",
                                      "1-2-18446744073709551616.page",
                                      "a-2-3.page",
                                      "1-2-3.page.old",
                                      " 1-2-3.page",
                                      "0x1-2-3.page"};
    struct page_id id;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        REQUIRE(!page_id_parse(bad[i], &id));
    REQUIRE(page_id_parse("4026531836-17-18446744073709551615.page", &id));
    REQUIRE(id.pid_namespace == 4026531836 && id.pid == 17 && id.start_ticks == UINT64_MAX);
}

PLAY_TESTS
