/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates and frees, and ends in the way that its argument names; exit status 5, or 7 of a child.
 * "exit, ..": does more before. "exit titled": writes a title over its arguments and environment
 * before it uses CUDA, as servers do. "exit locale": empties the cache in the locale of the
 * environment. */
#include <cuda.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void *leave(void *unused)
{
    exit(5);
}

extern char **environ;

static void write_title(char *argv0)
{
    char *end = argv0 + strlen(argv0), **kept;
    size_t count = 0;
    while (environ[count] != NULL)
        count++;
    kept = calloc(count + 1, sizeof *kept);
    for (size_t i = 0; i < count; i++) {
        if (environ[i] + strlen(environ[i]) > end)
            end = environ[i] + strlen(environ[i]);
        kept[i] = strdup(environ[i]);
    }
    environ = kept;
    memset(argv0, 0, (size_t)(end - argv0));
    strcpy(argv0, "ENGINE: worker 7/8");
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "return";
    CUcontext context = NULL;
    CUdeviceptr block = 0;
    pthread_t thread;
    int status = 0;
    if (strcmp(way, "exit titled") == 0) {
        way = "exit";
        write_title(argv[0]);
    }
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemAlloc(&block, 1 << 20) != CUDA_SUCCESS ||
        cuMemFree(block) != CUDA_SUCCESS)
        return 1;
    if (strncmp(way, "child", 5) == 0) {
        /* The second is a fork that runs no handlers of pthread_atfork(). */
        pid_t child = strstr(way, "bare") == NULL
                          ? fork()
                          : (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
        if (child == 0)
            exit(7);
        waitpid(child, &status, 0);
        if (strstr(way, "then exit") == NULL)
            _exit(WEXITSTATUS(status));
        exit(5);
    }
    if (strstr(way, "two contexts") != NULL) {
        CUcontext second = NULL;
        if (cuCtxCreate(&second, NULL, 0, 0) != CUDA_SUCCESS ||
            cuMemAlloc(&block, 1 << 20) != CUDA_SUCCESS || cuMemFree(block) != CUDA_SUCCESS ||
            cuCtxDestroy(second) != CUDA_SUCCESS)
            return 1;
    }
    if (strstr(way, "locale") != NULL &&
        (setlocale(LC_ALL, "") == NULL || setenv("GPUCACHE_EMPTY_CACHE", "1", 1) != 0 ||
         cuMemAlloc(&block, 1 << 20) != CUDA_SUCCESS))
        return 1;
    for (int i = 0; strstr(way, "request device=9") != NULL && i < 2; i++)
        setenv("GPUCACHE_EMPTY_CACHE", "device=9", strstr(way, "unless set") == NULL);
    if (strstr(way, "later") != NULL)
        usleep(300000);
    if (strstr(way, "linger") != NULL)
        usleep(3500000);
    if (strstr(way, "touch none") != NULL) {
        close(open("none", O_WRONLY | O_CREAT, 0666));
        usleep(500000);
    }
    if (strncmp(way, "exit", 4) == 0)
        exit(5);
    if (strcmp(way, "quick_exit") == 0)
        quick_exit(5);
    if (strcmp(way, "_exit") == 0)
        _exit(5);
    if (strcmp(way, "abort") == 0)
        abort();
    if (strcmp(way, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(way, "wait") == 0)
        getchar();
    if (strcmp(way, "thread") == 0 && pthread_create(&thread, NULL, leave, NULL) == 0)
        pause();
    return 0;
}
