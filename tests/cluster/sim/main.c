/* test_cluster_sim: runs seeds, or looks for bugs on purpose.
 *
 *   test_cluster_sim                    300 seeds, then every mutation
 *   test_cluster_sim --seeds FIRST LAST
 *   test_cluster_sim --seed N [--mutation M]    one, traced
 *   test_cluster_sim --mutations        each must be found within 500 seeds
 */
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/cluster/sim/sim.h"

enum { SEEDS = 300, FOUND_BY = 500 };

static int seeds(uint64_t first, uint64_t last)
{
    sim_report sum = {.failure = ""};
    int failed = 0;
    for (uint64_t seed = first; seed <= last; seed++) {
        sim_report r;
        sim_run(seed, SIM_NONE, NULL, &r);
        sum.n_events += r.n_events;
        sum.n_steps += r.n_steps;
        sum.n_restarted += r.n_restarted;
        sum.n_faults += r.n_faults;
        sum.n_commits += r.n_commits;
        sum.n_rollbacks += r.n_rollbacks;
        sum.n_stale += r.n_stale;
        sum.n_requests += r.n_requests;
        if (r.failure[0] == '\0') continue;
        printf("FAIL seed %llu at %.3f s: %s\n", (unsigned long long)seed,
               (double)r.at_ns / 1e9 - 1000, r.failure);
        (void)fflush(stdout);
        failed++;
    }
    printf("%s seeds %llu to %llu: %d failed; %llu events, %llu faults, %d "
           "requests, %llu steps (%llu begun again), %llu epochs (%llu rolled "
           "back), %llu late answers dropped\n",
           failed == 0 ? "ok  " : "FAIL", (unsigned long long)first,
           (unsigned long long)last, failed, (unsigned long long)sum.n_events,
           (unsigned long long)sum.n_faults, sum.n_requests,
           (unsigned long long)sum.n_steps, (unsigned long long)sum.n_restarted,
           (unsigned long long)sum.n_commits,
           (unsigned long long)sum.n_rollbacks,
           (unsigned long long)sum.n_stale);
    return failed;
}

static int mutations(void)
{
    int missed = 0;
    for (int m = SIM_NONE + 1; m < SIM_MUTATIONS; m++) {
        sim_report r = {.failure = ""};
        uint64_t seed = 0;
        while (r.failure[0] == '\0' && seed < FOUND_BY)
            sim_run(++seed, (enum sim_mutation)m, NULL, &r);
        const bool found = r.failure[0] != '\0';
        printf("%s %s: %s (seed %llu)\n", found ? "ok  " : "FAIL",
               sim_mutation_name((enum sim_mutation)m),
               found ? r.failure : "not found", (unsigned long long)seed);
        (void)fflush(stdout);
        missed += !found;
    }
    return missed;
}

static int traced(uint64_t seed, const char *name)
{
    enum sim_mutation mutation = SIM_NONE;
    for (int m = 0; m < SIM_MUTATIONS; m++)
        if (strcmp(name, sim_mutation_name((enum sim_mutation)m)) == 0)
            mutation = (enum sim_mutation)m;
    sim_report r;
    sim_run(seed, mutation, stdout, &r);
    printf("%s\n", r.failure[0] != '\0' ? r.failure : "ok");
    return r.failure[0] != '\0';
}

static uint64_t number(const char *text)
{
    return strtoull(text, NULL, 10);
}

int main(int argc, char **argv)
{
    int bad = 0;
    if (argc == 4 && strcmp(argv[1], "--seeds") == 0)
        bad = seeds(number(argv[2]), number(argv[3]));
    else if (argc >= 3 && strcmp(argv[1], "--seed") == 0)
        bad = traced(number(argv[2]), argc == 5 ? argv[4] : "none");
    else if (argc == 2 && strcmp(argv[1], "--mutations") == 0)
        bad = mutations();
    else if (argc == 1)
        bad = seeds(1, SEEDS) + mutations();
    else
        bad = printf("usage: test_cluster_sim [--seeds FIRST LAST | --seed N "
                     "[--mutation M] | --mutations]\n");
    if (weft_mem_live() != 0) {
        printf("FAIL %ld blocks were not freed\n", weft_mem_live());
        bad++;
    }
    return bad == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
