/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See scope.h. No lock of ours, no state.
 */
#include "shim/process/scope.h"

#include "shim/process/kernel.h"

#include <errno.h>
#include <gnu/lib-names.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

enum { NOWHERE = -1 };

/* All loaded objects in the order of the loader's list, and memory for a scope. */
struct list {
    size_t capacity, num;
    struct object *objects; /* `capacity` each */
    struct object *scope;
    bool *in_scope;
    ptrdiff_t us, libc; /* places of this library and of the C library; NOWHERE */
    ptrdiff_t caller;   /* of the object that covers `address` */
    uintptr_t address;  /* 0: none is asked for */
    bool overflowed;
};

static int count(struct dl_phdr_info *info, size_t size, void *arg)
{
    *(size_t *)arg = (size_t)(info->dlpi_adds - info->dlpi_subs);
    return 1;
}

static int add(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct list *list = arg;
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

/* The list, and the function that runs on it inside the callback. */
struct task {
    struct list list;
    bool (*run)(const struct task *task);
    const char *name;
    scope_use *use;
    void *arg;
    bool is_done;
};

/* The outer callback keeps W, so the list does not change during the inner walk and task->run. */
static int hold(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct task *task = arg;
    dl_iterate_phdr(add, &task->list);
    task->is_done = !task->list.overflowed && task->run(task);
    return 1;
}

/* Has room for some more objects than there are now, because other threads may load some. */
static bool run(struct task *task)
{
    enum { SPARE = 32 };
    struct list *list = &task->list;
    int saved_errno = errno;
    size_t now = 0;
    dl_iterate_phdr(count, &now);
    list->capacity = now + SPARE;
    list->us = list->libc = list->caller = NOWHERE;
    size_t each = 2 * sizeof *list->objects + sizeof *list->in_scope;
    void *memory = calloc(list->capacity, each);
    if (memory) {
        list->objects = memory;
        list->scope = list->objects + list->capacity;
        list->in_scope = (bool *)(list->scope + list->capacity);
        dl_iterate_phdr(hold, task);
        free(memory);
    }
    errno = saved_errno;
    return task->is_done;
}

static bool started_with_us(const struct list *list)
{
    return list->us != NOWHERE && list->libc > list->us;
}

static bool use_behind(const struct task *task)
{
    const struct list *list = &task->list;
    if (!started_with_us(list))
        return false;
    task->use(list->objects + list->us + 1, (size_t)(list->libc - list->us), task->arg);
    return true;
}

/* The loaded object that a dependency of this name means. The loader takes the first object of this
 * name in the list. That object is still loaded and still the first. Only if no object has the
 * name, the loader looks for a file of this name. */
static ptrdiff_t dependency(const struct list *list, const char *name)
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
    const struct list *list = &task->list;
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
    const struct list *list = &task->list;
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

/* The first thread's stack is at the top of the address space, below the bytes of AT_RANDOM. Linux
 * maps nothing else within 128 MiB below (arch/x86/mm/mmap.c, MIN_GAP). So a process without
 * threads makes no system call here. */
bool scope_in_other_thread(void)
{
    enum { FIRST_STACK_BYTES = 100 << 20 };
    uintptr_t top = getauxval(AT_RANDOM);
    if (top - (uintptr_t)__builtin_frame_address(0) < FIRST_STACK_BYTES)
        return false;
    return kernel_gettid() != getpid();
}

/* Weak: a reference that is not weak would make the dynamic loader a dependency of this library. */
#pragma weak _r_debug

/* Visits the objects before us, or those behind us, up to the C library. The walk does not read the
 * link behind the C library's entry, which dlopen() may change (see 9 in scope.h). */
static bool walk(bool is_behind, scope_visit *visit, void *arg)
{
    bool passed_us = false, ends = false;
    const struct link_map *map = &_r_debug ? _r_debug.r_map : NULL;
    while (map && !ends) {
        struct object object;
        if (map->l_ld == _DYNAMIC) {
            passed_us = true;
            ends = !is_behind;
        } else if (object_read_map(map, &object)) {
            ends = object_is_named(&object, LIBC_SO);
            if (is_behind == passed_us)
                ends |= visit(&object, arg);
        }
        if (!ends)
            map = map->l_next;
    }
    return passed_us;
}

bool scope_before_us(scope_visit *visit, void *arg)
{
    return walk(false, visit, arg);
}

bool scope_behind_us(scope_visit *visit, void *arg)
{
    return walk(true, visit, arg);
}

struct wanted {
    const char *name;
    bool is_there;
};

static bool is_wanted(const struct object *object, void *arg)
{
    struct wanted *wanted = arg;
    wanted->is_there = object_is_named(object, wanted->name);
    return wanted->is_there;
}

/* Without the library the lock W is not taken: see 3 in scope.h. */
bool scope_of_library(const char *name, scope_use *use, void *arg)
{
    struct wanted wanted = {name, false};
    struct task task = {.run = use_library, .name = name, .use = use, .arg = arg};
    scope_behind_us(is_wanted, &wanted);
    return wanted.is_there && run(&task);
}

bool scope_of_caller(uintptr_t address, scope_use *use, void *arg)
{
    struct task task = {.run = use_caller, .use = use, .arg = arg};
    task.list.address = address;
    return run(&task);
}
