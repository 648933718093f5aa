#include "node/app/lifecycle.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "node/app/exit.h"
#include "node/base/clock.h"
#include "node/base/log.h"

enum { STARTING, SERVING, DRAINING };

static const long ASK_NS = 5000000;

/* Signals belong to the process, so this is one for the process. */
static struct {
    _Atomic int phase;
    _Atomic bool ending;
    _Atomic(const char *) why; /* a drain that was asked for; NULL: none */
    sem_t drain;
    sigset_t signals, before;
    pthread_t thread;
    bool begun;
} lifecycle;

static void take_signal(int number)
{
    int phase = SERVING;
    if (atomic_compare_exchange_strong(&lifecycle.phase, &phase, DRAINING)) {
        weft_log(WEFT_LOG_INFO, "lifecycle", "draining", "signal %d", number);
        (void)sem_post(&lifecycle.drain);
        return;
    }
    if (phase == STARTING)
        weft_log(WEFT_LOG_INFO, "lifecycle", "stopped", "signal %d phase start",
                 number);
    else
        weft_log(WEFT_LOG_WARN, "lifecycle", "cut", "signal %d phase drain",
                 number);
    /* No clean-up: the sender of a second signal does not want to wait. */
    _exit(phase == STARTING ? WEFT_EXIT_DONE : WEFT_EXIT_INTERNAL);
}

static void *watch_signals(void *arg)
{
    (void)arg;
    for (;;) {
        int number = 0;
        if (sigwait(&lifecycle.signals, &number) != 0) continue;
        if (atomic_load(&lifecycle.ending)) return NULL;
        if (number != SIGUSR1) take_signal(number);
    }
}

weft_status weft_lifecycle_begin(weft_err *err)
{
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&lifecycle.signals);
    (void)sigaddset(&lifecycle.signals, SIGTERM);
    (void)sigaddset(&lifecycle.signals, SIGINT);
    (void)sigaddset(&lifecycle.signals, SIGUSR1); /* ends the thread */
    (void)pthread_sigmask(SIG_BLOCK, &lifecycle.signals, &lifecycle.before);
    (void)sem_init(&lifecycle.drain, 0, 0);
    atomic_store(&lifecycle.phase, STARTING);
    atomic_store(&lifecycle.ending, false);
    atomic_store(&lifecycle.why, NULL);
    const int code =
        pthread_create(&lifecycle.thread, NULL, watch_signals, NULL);
    if (code != 0) {
        (void)pthread_sigmask(SIG_SETMASK, &lifecycle.before, NULL);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "cannot start the signal thread: %s", strerror(code));
    }
    lifecycle.begun = true;
    return WEFT_OK;
}

void weft_lifecycle_end(void)
{
    if (!lifecycle.begun) return;
    lifecycle.begun = false;
    atomic_store(&lifecycle.ending, true);
    (void)pthread_kill(lifecycle.thread, SIGUSR1);
    (void)pthread_join(lifecycle.thread, NULL);
    (void)sem_destroy(&lifecycle.drain);
    (void)pthread_sigmask(SIG_SETMASK, &lifecycle.before, NULL);
}

void weft_lifecycle_set_serving(void)
{
    atomic_store(&lifecycle.phase, SERVING);
    const char *const why = atomic_load(&lifecycle.why);
    if (why != NULL) weft_lifecycle_drain(why);
}

void weft_lifecycle_drain(const char *why)
{
    int phase = SERVING;
    /* Before the look at the phase: one of this and set_serving sees both. */
    atomic_store(&lifecycle.why, why);
    if (!atomic_compare_exchange_strong(&lifecycle.phase, &phase, DRAINING))
        return;
    weft_log(WEFT_LOG_INFO, "lifecycle", "draining", "why \"%s\"", why);
    (void)sem_post(&lifecycle.drain);
}

void weft_lifecycle_wait_for_drain(void)
{
    while (sem_wait(&lifecycle.drain) != 0) {
        /* interrupted: wait on */
    }
}

bool weft_lifecycle_wait_until(bool (*done)(void *arg), void *arg,
                               uint64_t deadline_ns)
{
    for (;;) {
        if (done(arg)) return true;
        if (weft_clock_now_ns() >= deadline_ns) return false;
        const struct timespec pause = {.tv_nsec = ASK_NS};
        (void)nanosleep(&pause, NULL);
    }
}
