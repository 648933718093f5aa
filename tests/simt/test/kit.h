// kit.h - for the emulator's own tests: each runs in a child, so that one which
// ends in a report or an abort is as good a test as any.
//
// The parent never runs a kernel: ThreadSanitizer gives up on a child whose
// parent had fibers.
#ifndef WEFT_TESTS_SIMT_TEST_KIT_H
#define WEFT_TESTS_SIMT_TEST_KIT_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/device.cuh"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#else
#define HAS_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#else
#define HAS_TSAN 0
#endif

// One launch after another, at once: no streams here.
namespace simt
{
static int refused;
void submit(void *, const char *, std::function<void()> work)
{
    work();
}
void refuse(const char *, int error)
{
    refused = error;
}
} // namespace simt

extern "C" const char *__tsan_default_options()
{
    return "halt_on_error=1:atexit_sleep_ms=0";
}
extern "C" const char *__asan_default_options()
{
    return "detect_leaks=0:abort_on_error=0";
}

namespace kit
{

static int n_failed, n_run;
static const char *only; // part of the names of the tests to run

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) kit::give_up(__LINE__, #condition);                  \
    } while (0)
#define CHECK_NEAR(a, b, tolerance)                                            \
    do {                                                                       \
        const double a_ = (a), b_ = (b);                                       \
        if (!(fabs(a_ - b_) <= (tolerance))) {                                 \
            fprintf(stderr, "%.9g, not %.9g\n", a_, b_);                       \
            kit::give_up(__LINE__, #a);                                        \
        }                                                                      \
    } while (0)

[[noreturn]] static inline void give_up(int line, const char *what)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    _exit(3);
}

// What the child wrote to stderr, and its status.
static inline int in_child(void (*body)(), char *text, size_t bytes)
{
    int ends[2];
    if (pipe(ends)) abort();
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        alarm(120);
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    char spill[4096];
    for (;;) {
        const bool room = n + 1 < bytes;
        const ssize_t got = read(ends[0], room ? text + n : spill,
                                 room ? bytes - 1 - n : sizeof spill);
        if (got <= 0) break;
        if (room) n += static_cast<size_t>(got);
    }
    text[n] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

static inline void verdict(const char *name, bool good, int status,
                           const char *text)
{
    n_run++;
    printf("%s %s\n", good ? "PASS" : "FAIL", name);
    if (good) return;
    n_failed++;
    printf("  status %#x, said: %.2000s\n", static_cast<unsigned>(status),
           text);
}

// The body is right and says nothing.
static inline void good(const char *name, void (*body)())
{
    static char text[1 << 16];
    if (only && !strstr(name, only)) return;
    const int status = in_child(body, text, sizeof text);
    verdict(name, status == 0, status, text);
}

// The body is wrong, and the child dies of it with all of `words` (up to the
// null) in what it says.
static inline void bad(const char *name, void (*body)(), ...)
{
    static char text[1 << 16];
    if (only && !strstr(name, only)) return;
    const int status = in_child(body, text, sizeof text);
    bool found =
        status != 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    va_list words;
    va_start(words, body);
    for (const char *w; (w = va_arg(words, const char *));)
        found = found && strstr(text, w);
    va_end(words);
    verdict(name, found, status, text);
}

static inline int end()
{
    printf("%d tests, %d failed\n", n_run, n_failed);
    return n_failed || !n_run;
}

// Numbers between -1 and 1, from a seed.
struct random {
    uint32_t state;
    float next()
    {
        state = state * 1664525U + 1013904223U;
        return static_cast<float>(state >> 8) / 8388608.0F - 1.0F;
    }
};

} // namespace kit

#endif
