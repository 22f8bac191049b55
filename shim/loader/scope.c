/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See scope.h. No lock of ours, no state.
 */
#include "shim/loader/scope.h"

#include "shim/process/decimal.h"
#include "shim/process/kernel.h"
#include "shim/process/proc_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

enum { NOWHERE = -1 };

/* All loaded objects in the order of the loader's list, and room for a scope. */
struct object_list {
    size_t capacity, num;
    struct object *objects; /* `capacity` each */
    struct object *scope;
    bool *in_scope;
    ptrdiff_t us, libc; /* places of this library and of the C library; NOWHERE */
    ptrdiff_t caller;   /* of the object that covers `address` */
    uintptr_t address;  /* 0: none is asked for */
    bool overflowed;
};

/* One by one, if the record does not tell. */
static int count_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    size_t *num = arg;
    bool tells = object_has_counts(size);
    *num = tells ? (size_t)(info->dlpi_adds - info->dlpi_subs) : *num + 1;
    return tells;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct object_list *list = arg;
    if (list->num == list->capacity) {
        list->overflowed = true;
        return 1;
    }
    struct object *object = &list->objects[list->num];
    if (!object_read(info, object))
        return 0;
    if (object_covers(info, (uintptr_t)scope_of_caller))
        list->us = (ptrdiff_t)list->num;
    if (object_covers(info, (uintptr_t)__errno_location))
        list->libc = (ptrdiff_t)list->num;
    if (list->address && object_covers(info, list->address))
        list->caller = (ptrdiff_t)list->num;
    list->num++;
    return 0;
}

/* What is done with the list, inside the callback. */
struct task {
    struct object_list list;
    bool (*run)(const struct task *task);
    const char *name;
    scope_use *use;
    void *arg;
    bool is_done;
};

/* The first call holds the list still for the inner walk and for all that follows. */
static int run_held(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct task *task = arg;
    dl_iterate_phdr(add_object, &task->list);
    task->is_done = !task->list.overflowed && task->run(task);
    return 1;
}

/* Some more objects than there are now, as other threads may load some meanwhile. */
static bool run_task(struct task *task)
{
    enum { SPARE = 32 };
    struct object_list *list = &task->list;
    int saved_errno = errno;
    size_t now = 0;
    dl_iterate_phdr(count_object, &now);
    list->capacity = now + SPARE;
    list->us = list->libc = list->caller = NOWHERE;
    size_t each = 2 * sizeof *list->objects + sizeof *list->in_scope;
    void *memory = calloc(list->capacity, each);
    if (memory) {
        list->objects = memory;
        list->scope = list->objects + list->capacity;
        list->in_scope = (bool *)(list->scope + list->capacity);
        dl_iterate_phdr(run_held, task);
        free(memory);
    }
    errno = saved_errno;
    return task->is_done;
}

static bool started_with_us(const struct object_list *list)
{
    return list->us != NOWHERE && list->libc > list->us;
}

static bool use_behind(const struct task *task)
{
    const struct object_list *list = &task->list;
    if (!started_with_us(list))
        return false;
    task->use(list->objects + list->us + 1, (size_t)(list->libc - list->us), task->arg);
    return true;
}

/* The loaded object that is a dependency of this name. The loader takes the first in the list when
 * the dependency is loaded, and that one is still there and still the first. It finds a file of
 * this name only if no object has the name. */
static ptrdiff_t dependency(const struct object_list *list, const char *name)
{
    ptrdiff_t found = NOWHERE;
    for (size_t i = 0; i < list->num; i++)
        if (object_is_named(&list->objects[i], name))
            return (ptrdiff_t)i;
    for (size_t i = 0; i < list->num; i++)
        if (object_has_file_name(&list->objects[i], name)) {
            if (found != NOWHERE)
                return NOWHERE;
            found = (ptrdiff_t)i;
        }
    return found;
}

static bool use_dependencies(const struct task *task, size_t root)
{
    const struct object_list *list = &task->list;
    size_t num = 0;
    list->scope[num++] = list->objects[root];
    list->in_scope[root] = true;
    for (size_t i = 0; i < num; i++) {
        const char *name;
        for (size_t n = 0; (name = object_needs(&list->scope[i], n)); n++) {
            ptrdiff_t place = dependency(list, name);
            if (place == NOWHERE)
                return false;
            if (!list->in_scope[place])
                list->scope[num++] = list->objects[place];
            list->in_scope[place] = true;
        }
    }
    task->use(list->scope, num, task->arg);
    return true;
}

static bool use_library(const struct task *task)
{
    const struct object_list *list = &task->list;
    if (!started_with_us(list))
        return false;
    for (ptrdiff_t i = list->us + 1; i < list->libc; i++)
        if (object_is_named(&list->objects[i], task->name))
            return use_dependencies(task, (size_t)i);
    return false;
}

static bool use_caller(const struct task *task)
{
    ptrdiff_t caller = task->list.caller;
    if (caller == NOWHERE)
        return false;
    bool is_program = !task->list.objects[caller].path[0];
    return is_program ? use_behind(task) : use_dependencies(task, (size_t)caller);
}

/* The first thread's stack lies at the top of the address space, below what the kernel hands a
 * process at its start (AT_RANDOM). Linux maps nothing else within 128 MiB (arch/x86/mm/mmap.c,
 * MIN_GAP). So a process without threads makes no system call here. */
static bool in_first_thread(void)
{
    enum { FIRST_STACK_BYTES = 100 << 20 };
    uintptr_t top = getauxval(AT_RANDOM);
    return top - (uintptr_t)__builtin_frame_address(0) < FIRST_STACK_BYTES ||
           kernel_gettid() == getpid();
}

/* The process was forked, and called no exec since. True if that cannot be read. The kernel's
 * PF_FORKNOEXEC tells it. It is among the flags in /proc/self/stat (proc(5)). */
bool scope_is_forked(void)
{
    enum { PF_FORKNOEXEC = 0x40, FLAGS_FIELD = 9 };
    char text[PROC_TEXT_BYTES];
    uint64_t flags;
    proc_text_read("/proc/self/stat", text);
    const char *at = proc_text_stat_field(text, FLAGS_FIELD);
    return !at || !decimal_read(&at, &flags) || flags & PF_FORKNOEXEC;
}

bool scope_may_be_walked(void)
{
    if (in_first_thread())
        return false;
    int saved_errno = errno;
    bool may = !scope_is_forked();
    errno = saved_errno;
    return may;
}

struct walk {
    scope_visit *visit;
    void *arg;
    bool behind;    /* the part of the list that is visited */
    bool passed_us; /* we are among the objects that the process started with */
};

static int walk_on(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct walk *walk = arg;
    struct object object;
    if (object_covers(info, (uintptr_t)scope_of_caller)) {
        walk->passed_us = true;
        return !walk->behind;
    }
    bool ends = object_covers(info, (uintptr_t)__errno_location);
    if (walk->behind == walk->passed_us && object_read(info, &object))
        ends |= walk->visit(&object, walk->arg);
    return ends;
}

bool scope_before_us(scope_visit *visit, void *arg)
{
    struct walk walk = {.visit = visit, .arg = arg};
    dl_iterate_phdr(walk_on, &walk);
    return walk.passed_us;
}

bool scope_behind_us(scope_visit *visit, void *arg)
{
    struct walk walk = {.visit = visit, .arg = arg, .behind = true};
    dl_iterate_phdr(walk_on, &walk);
    return walk.passed_us;
}

bool scope_of_library(const char *name, scope_use *use, void *arg)
{
    struct task task = {.run = use_library, .name = name, .use = use, .arg = arg};
    return run_task(&task);
}

bool scope_of_caller(uintptr_t address, scope_use *use, void *arg)
{
    struct task task = {.run = use_caller, .use = use, .arg = arg};
    task.list.address = address;
    return run_task(&task);
}
