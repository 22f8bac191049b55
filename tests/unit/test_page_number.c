/* SPDX-License-Identifier: BSD-2-Clause */
/* A program closes every descriptor while the library makes its page, and opens a file of its own.
 * The file gets the number of the library's. The test does so inside the library's calls. */
#include "tests/unit/page_case.h"

static int victim = -1;   /* the number under which the program's own file is */
static char own_path[96]; /* of that file */
static const char words[] = "the program's own file";
static bool takes_file, takes_folder, takes_at_once;

static void take_number(int fd)
{
    int own = open(own_path, O_RDWR | O_CREAT, 0640);
    REQUIRE(own >= 0 && write(own, words, sizeof words) == sizeof words);
    REQUIRE(dup2(own, fd) == fd);
    close(own);
    victim = fd;
}

static int folder_number(void)
{
    char link[64], target[128];
    for (int fd = 3; fd < 64; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        if (strcmp(target, dir) == 0)
            return fd;
    }
    REQUIRE(!"the folder is open");
    return -1;
}

/* The library's call, in place of the C library's. */
int fallocate(int fd, int mode, off_t offset, off_t size_bytes)
{
    long rc = syscall(SYS_fallocate, fd, mode, offset, size_bytes);
    if (takes_file)
        take_number(fd);
    if (takes_folder)
        take_number(folder_number());
    return (int)rc;
}

/* The same; the file is the program's before the library looks at it for the first time. */
int openat(int at, const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list args;
    va_start(args, flags);
    if (flags & O_CREAT)
        mode = va_arg(args, mode_t);
    va_end(args);
    int fd = (int)syscall(SYS_openat, at, path, flags, mode);
    if (takes_at_once && flags & O_CREAT) {
        takes_at_once = false;
        take_number(fd);
    }
    return fd;
}

static void expect_own_file_untouched(void)
{
    char text[sizeof words] = "";
    struct stat st, at;
    REQUIRE(victim >= 0 && fstat(victim, &st) == 0 && stat(own_path, &at) == 0);
    REQUIRE(st.st_ino == at.st_ino && st.st_size == sizeof words && (st.st_mode & 0777) == 0640);
    REQUIRE(pread(victim, text, sizeof text, 0) == sizeof text && !strcmp(text, words));
}

/* Whether the page was made, though the program took the number. */
static bool makes_page(void)
{
    struct page_state s = state_of("{\"a\":1}");
    umask(0);
    snprintf(own_path, sizeof own_path, "%s/own", root);
    bool made = page_make(dir, &s, &why);
    expect_own_file_untouched();
    REQUIRE(made || (why && !page_publish(&s)));
    return made;
}

CASE(a_file_of_the_programs_under_the_number_of_the_page_is_left_alone)
{
    takes_file = true;
    REQUIRE(!makes_page());
    page_remove();
    expect_own_file_untouched();
}

CASE(a_file_of_the_programs_that_has_the_number_at_once_is_left_alone)
{
    takes_at_once = true;
    REQUIRE(!makes_page() && !takes_at_once && entries_of(dir) == 0);
    page_remove();
    expect_own_file_untouched();
}

CASE(a_file_of_the_programs_under_the_number_of_the_folder_is_left_open)
{
    takes_folder = true;
    makes_page();
    page_remove();
    expect_own_file_untouched();
}

PLAY_TESTS
