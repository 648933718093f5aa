/* simt_faults.h - faults that libweft_simt.so can be told to have
 * (tests/simt/runtime.h); on a real device those tests say that they are
 * skipped. */
#ifndef WEFT_TESTS_CUDA_SIMT_FAULTS_H
#define WEFT_TESTS_CUDA_SIMT_FAULTS_H

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/device_kit.h"

static inline bool is_simt(void)
{
    return strcmp(device_kit_api()->name, "simt") == 0;
}

/* Whether a test that orders faults can go on; if not, it is named. */
static inline bool has_faults(const char *test)
{
    if (is_simt()) return true;
    printf("SKIP %s: %s has no faults to order\n", test,
           device_kit_api()->name);
    return false;
}

/* From here on; NULL: none. */
static inline void order_fault(const char *fault)
{
    if (fault == NULL)
        (void)unsetenv("WEFT_SIMT_FAULT");
    else
        (void)setenv("WEFT_SIMT_FAULT", fault, 1);
}

/* How a child ends that does such a thing; what it prints is not wanted. */
static inline int end_of_child(void (*misuse)(void))
{
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)fclose(stderr);
        misuse();
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

static inline void expect_panic(void (*misuse)(void))
{
    const int status = end_of_child(misuse);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static inline int64_t number_from(const char *name)
{
    int64_t (*number)(void) = NULL;
    void *const symbol = device_kit_symbol(name);
    memcpy(&number, &symbol, sizeof number);
    return number == NULL ? 0 : number();
}

/* Device blocks, streams, graphs and the rest that the library has not given
 * back, and what it took of the host. */
static inline int64_t live_things(void)
{
    return number_from("weft_simt_live") + number_from("weft_mem_live");
}

#endif
