/* portable_main.c - the comparisons of kernel_kit.h without a test library.
 *
 * Prints one line for each op: its name, how many cases, and a hash of all
 * results, which must be the same on every architecture. Exit 1 if a path
 * differs from the reference. Arguments, if any, name the ops to run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/kernel_kit.h"

static bool wanted(const char *name, int argc, char **argv)
{
    if (argc < 2) return true;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return true;
    return false;
}

int main(int argc, char **argv)
{
    int32_t n_failed = 0;
    fprintf(stderr, "paths:");
    for (int32_t i = 0; weft_ops_cpu_nth(i) != NULL; i++)
        fprintf(stderr, " %s", weft_ops_cpu_nth(i)->name);
    fprintf(stderr, "\n");
    for (const weft_kernel_check *c = weft_kernel_checks; c->name != NULL;
         c++) {
        if (!wanted(c->name, argc, argv)) continue;
        weft_kernel_check check;
        weft_kernel_check_run(c->name, &check);
        printf("%s %d %016" PRIx64 "\n", check.name, check.n_case, check.hash);
        n_failed += check.n_failed;
    }
    return n_failed == 0 ? 0 : 1;
}
