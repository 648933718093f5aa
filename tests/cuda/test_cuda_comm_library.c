/* Which NCCL is found (kernels/comm.h: version, why), and what is done without
 * what a version lacks. Each test is a process, and looks once. */
#include "tests/cuda/comm_kit.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

#include <dlfcn.h>
#include <limits.h>

static unsigned char id[WEFT_COMM_ID_BYTES];

static void choose(const char *library)
{
    (void)setenv("WEFT_NCCL_LIBRARY", library, 1);
}

/* Beside libweft_simt.so. */
static void choose_beside(const char *name)
{
    Dl_info info;
    char path[PATH_MAX];
    void *const at = device_kit_symbol(WEFT_DEVICE_SYMBOL);
    ck_assert(at != NULL && dladdr(at, &info) != 0);
    const char *const slash = strrchr(info.dli_fname, '/');
    ck_assert_ptr_nonnull(slash);
    (void)snprintf(path, sizeof path, "%.*s%s",
                   (int)(slash + 1 - info.dli_fname), info.dli_fname, name);
    choose(path);
}

static void expect_none(const char *word)
{
    const weft_comm_api *const comms = comm_kit_api();
    ck_assert_int_eq(comms->version, 0);
    ck_assert_msg(strstr(comms->why, word) != NULL, "\"%s\" lacks \"%s\"",
                  comms->why, word);
    ck_assert(strchr(comms->why, '\n') == NULL);
    /* Found once: another look gives the same. */
    choose("");
    ck_assert_int_eq(comm_kit_api()->version, 0);
}

START_TEST(it_is_found_beside_the_library)
{
    choose("");
    ck_assert_int_eq(comm_kit_api()->version, 23203);
}
END_TEST

START_TEST(no_library_is_told_with_its_name)
{
    choose("/nowhere/libnccl.so.2");
    expect_none("NCCL: /nowhere/libnccl.so.2: cannot open");
}
END_TEST

START_TEST(another_library_is_not_taken_for_it)
{
    choose("libm.so.6");
    expect_none("libm.so.6 does not say its version of NCCL");
}
END_TEST

START_TEST(an_old_version_is_told)
{
    choose("");
    order_fault("nccl_old");
    expect_none("NCCL is 2.10, and 2.17 or later is needed");
}
END_TEST

START_TEST(a_symbol_that_is_needed_is_named)
{
    choose_beside("libweft_simt_nccl_part.so");
    expect_none("NCCL 2.32 has no ncclRecv, which is needed");
}
END_TEST

static void join_and_break(int32_t rank, void *arg)
{
    const weft_comm_api *const comms = comm_kit_api();
    weft_err told = {0};
    comm_end end;
    (void)arg;
    comm_kit_open(rank, &end);
    comm_kit_join(&end, id, 2, rank);
    void *const at = comm_kit_alloc(&end, 64);
    if (rank == 0) {
        OK(comms->send(end.comm, at, 64, 1, &err));
        comm_kit_wait_done(end.comm, comms->mark(end.comm));
        /* Host memory: refused, and there are no words for it. */
        ck_assert_int_eq(comms->send(end.comm, &end, 1, 1, &told),
                         WEFT_UNAVAILABLE);
        ck_assert_str_eq(told.text, "comm test: send: NCCL gives no word for "
                                    "it (NCCL 4)");
    } else {
        OK(comms->recv(end.comm, at, 64, 0, &err));
        comm_kit_wait_done(end.comm, comms->mark(end.comm));
    }
    comm_kit_close(&end);
}

START_TEST(words_can_be_done_without)
{
    choose_beside("libweft_simt_nccl_bare.so");
    ck_assert_int_eq(comm_kit_api()->version, 23203);
    OK(comm_kit_api()->make_id(id, &err));
    comm_kit_ranks(2, join_and_break, NULL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* NCCL itself, where WEFT_TEST_NCCL says, or a tool kit has it. */
static bool find_real(char path[PATH_MAX])
{
    const char *const named = getenv("WEFT_TEST_NCCL");
    const char *const home = getenv("CUDA_HOME");
    const char *const folders[] = {home == NULL ? "build/cuda-root" : home,
                                   "build/cuda-root", "/usr/local/cuda"};
    for (size_t i = 0; i < 3 && named == NULL; i++) {
        (void)snprintf(path, PATH_MAX, "%s/lib64/libnccl.so.2", folders[i]);
        if (dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL) return true;
    }
    (void)snprintf(path, PATH_MAX, "%s",
                   named != NULL ? named : "libnccl.so.2");
    return dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL;
}

/* On a machine without a driver: it is opened, tells its version, and says no
 * in a line. */
START_TEST(the_real_one_is_found_and_says_no)
{
    char path[PATH_MAX];
    if (!find_real(path)) {
        printf("SKIP %s: no libnccl.so.2\n", __func__);
        return;
    }
    choose(path);
    (void)setenv("NCCL_SOCKET_IFNAME", "lo", 1); /* else it listens outside */
    const weft_comm_api *const comms = comm_kit_api();
    ck_assert_msg(comms->version >= 21700, "%s", comms->why);
    comm_end end;
    comm_kit_open(0, &end);
    OK(comms->make_id(id, &err));
    weft_comm_options options = {.n_ranks = 2, .name = "test"};
    weft_err told = {0};
    memcpy(options.id, id, sizeof id);
    weft_status st = comms->begin(end.device, &options, &end.comm, &told);
    if (st == WEFT_OK && comm_kit_wait(end.comm, &told) == WEFT_COMM_BROKEN)
        st = told.status;
    printf("NCCL %d: %s\n", (int)comms->version, told.text);
    ck_assert_int_eq(st, WEFT_UNAVAILABLE);
    ck_assert(strncmp(told.text, "comm test: joining: ", 20) == 0);
    ck_assert(strchr(told.text, '\n') == NULL);
    comm_kit_close(&end);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

int main(void)
{
    comm_kit_need(2);
    const TTest *const tests[] = {
        it_is_found_beside_the_library,      no_library_is_told_with_its_name,
        another_library_is_not_taken_for_it, an_old_version_is_told,
        a_symbol_that_is_needed_is_named,    words_can_be_done_without,
        the_real_one_is_found_and_says_no,
    };
    return WEFT_SUITE_RUN("cuda_comm_library", tests);
}
